"""Evaluation during a run: the loss on a fixed part of dev, and a few samples."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F

from trainer.data.loader import IGNORE_INDEX, iterate_in_order
from trainer.distributed.devices import gather_weights
from trainer.errors import DivergenceError, attribute_to_model
from trainer.inference.sampling import PROMPTS, complete_prompt
from trainer.training.metrics import MetricsWriter
from trainer.training.progress import TrainingProgress
from trainer.training.run import Run


def evaluate(run: Run, metrics: MetricsWriter, progress: TrainingProgress) -> None:
    """Compute the loss on dev and generate samples. Not charged to the budget."""
    run.raw_model.eval()
    run.dev = compute_dev_loss(run)
    run.raw_model.train()
    if not math.isfinite(run.dev["loss"]):
        raise DivergenceError(f"The loss on dev became {run.dev['loss']} at step {run.usage.steps}: training diverged.")
    metrics.write("dev", run.usage.steps, **run.get_progress_metrics(), **run.dev)
    text = f"dev loss {run.dev['loss']:.4f} nats a token, {run.dev['bits_per_byte']:.4f} bits a byte"
    progress.print_line(f"{run.fraction:4.0%}  step {run.usage.steps}, {text}")
    for prompt in PROMPTS if run.resolved.sample_tokens else ():
        metrics.write("sample", run.usage.steps, prompt=prompt, text=generate_sample(run, prompt))


@torch.no_grad()
def compute_dev_loss(run: Run) -> dict[str, float]:
    """Return nats per token and bits per byte of text.

    Targets without text (end of text) do not count, so that results are comparable across tokenizers and with a scorer
    of single documents. Neither do ignored targets.
    """
    resolved, device = run.resolved, run.fabric.device
    byte_lengths = torch.from_numpy(run.dataset.tokenizer.byte_lengths()).to(device)
    nats = torch.zeros((), dtype=torch.float64, device=device)
    text_bytes = torch.zeros((), dtype=torch.int64, device=device)
    tokens = torch.zeros((), dtype=torch.int64, device=device)
    limit = max(1, resolved.dev_tokens // resolved.sequence_length)
    for inputs, targets in iterate_in_order(run.dataset, "dev", resolved.micro_batch, resolved.sequence_length, limit):
        missing = resolved.micro_batch - len(inputs)
        if resolved.compile and missing:  # the model would be compiled again for a smaller last batch
            inputs = F.pad(inputs, (0, 0, 0, missing))
            targets = F.pad(targets, (0, 0, 0, missing), value=IGNORE_INDEX)
        y = targets.to(device).flatten()
        with attribute_to_model("while it was evaluated", resolved.micro_batch):
            losses = run.model(inputs.to(device), targets.to(device), per_position=True)
        sizes = byte_lengths[y.clamp(min=0)] * (y != IGNORE_INDEX)
        has_text = sizes > 0
        nats += losses[has_text].double().sum()
        tokens += has_text.sum()
        text_bytes += sizes.sum()
    return {"loss": float(nats / tokens), "bits_per_byte": float(nats / math.log(2) / text_bytes)}


def generate_sample(run: Run, prompt: str) -> str:
    with attribute_to_model("while it generated a sample"), run.fabric.autocast(), gather_weights(run.objective):
        return complete_prompt(
            run.raw_model,
            run.dataset.tokenizer,
            prompt,
            tokens=run.resolved.sample_tokens,
            seed=run.config.seed,
            context=run.resolved.sequence_length,
        )
