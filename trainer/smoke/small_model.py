"""Train the small model of a smoke test from its graphs, and check that it uses no later token.

No code of the entry runs here.
"""

from __future__ import annotations

import dataclasses
import json
import resource
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch
from rich.console import Console

from trainer.accounting.flops import count_parameters
from trainer.config.parsing import parse_config
from trainer.data.dataset import Dataset
from trainer.errors import ModelError, UserError, attribute_to_model, is_out_of_memory
from trainer.graph.files import TracedArchitecture
from trainer.graph.model import build_model
from trainer.scoring.heldout_text import load_test_split
from trainer.scoring.look_ahead import Correction
from trainer.scoring.model_scorer import ModelScorer
from trainer.scoring.text_score import score_text
from trainer.training.loop import build_run, fit_and_finish
from trainer.training.run import Run

SCORED_TOKENS = 4096
QUIET = Console(stderr=True, quiet=True)


class CpuDeadline:
    """Stops the training loop after some CPU time, with the interface of `StopRequest`.

    CPU time, since other processes may be busy on this machine.
    """

    def __init__(self, seconds: float) -> None:
        self.is_graceful = False
        self._end = time.process_time() + seconds

    @property
    def is_requested(self) -> bool:
        return time.process_time() > self._end


@dataclasses.dataclass(frozen=True)
class TrainingResult:
    """The result of training the small model."""

    steps: int
    train_seconds: float  # CPU time
    tokens_per_second: float
    memory_bytes: int
    losses: tuple[float, ...]  # on dev, in nats per token: before the first step, ..., after the last


@dataclasses.dataclass(frozen=True)
class SmallModel:
    """The small model, ready to train."""

    traced: TracedArchitecture
    run: Run

    @property
    def parameters(self) -> int:
        return count_parameters(self.run.model)["total"]

    def train(self, seconds: float) -> TrainingResult:
        """Train for the run's steps, but at most this CPU time. Raise `ModelError`."""
        started = time.process_time()
        try:
            fit_and_finish(self.run, QUIET, CpuDeadline(seconds))  # type: ignore[arg-type]
        except ModelError as error:
            if is_out_of_memory(error.__cause__):
                raise ModelError(f"{str(error).partition(':')[0]}, at a small size already.") from error
            raise
        usage = self.run.usage
        return TrainingResult(
            usage.steps,
            round(time.process_time() - started, 3),
            usage.tokens / max(usage.seconds, 1e-9),
            resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
            tuple(read_dev_losses(self.run.metrics_path)),
        )

    def measure_look_ahead(self) -> Correction:
        """Return what the trained model loses without later tokens, in nats a token. Raise `ModelError`."""
        dataset, length = self.run.dataset, self.run.resolved.sequence_length
        texts = load_test_split(dataset, SCORED_TOKENS)
        cpu = torch.device("cpu")
        with attribute_to_model("while it was scored"):
            models = [ModelScorer(model, cpu, length) for model in (self.run.model, build_model(self.traced))]
            tokenizer = dataset.tokenizer
            found = score_text(*models, texts, tokenizer.byte_lengths(), tokenizer.end_of_text, lambda *_: None)
        return found.correction


@contextmanager
def open_small_model(traced: TracedArchitecture, dataset: Dataset, folder: Path, steps: int) -> Iterator[SmallModel]:
    """Yield the small model. Raise `ModelError` if it cannot be built or returns something else than logits."""
    traced.write(folder / "traced")
    flags = {
        "--preset": "tiny",
        "--dataset": dataset.folder,
        "--out": folder / "run",
        "--budget": f"{steps}steps",
        "--checkpoint-every": f"{steps}steps",
        "--train.sample-tokens": 0,
        "--train.evaluations": 2,
    }
    tiny = parse_config([f"{name}={value}" for name, value in flags.items()])
    config = dataclasses.replace(tiny, preset=None, model={}, graph=folder / "traced")
    with attribute_to_model("while a small model was built"):
        try:
            run = build_run(config, QUIET)
        except UserError as error:
            raise ModelError(f"A small model cannot be trained: {error}.") from error
    try:
        yield SmallModel(traced, run)
    finally:
        run.loader.close()
        run.writer.close()


def read_dev_losses(metrics: Path) -> list[float]:
    rows = [json.loads(line) for line in metrics.read_text().splitlines()]
    return [row["loss"] for row in rows if row["kind"] == "dev"]
