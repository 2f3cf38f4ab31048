"""Training: `setup -> main -> fit -> validate`, on Lightning Fabric.

The run's folder: `run.json` (what it is), `tokenizer.json`, `metrics.jsonl`, `checkpoints/`, at the end `result.json`,
or `failure.json`. Exit codes are in `trainer.failures`. Standard output stays empty; people read standard error.

With a budget in steps, tokens or FLOPs, a run that was killed and started again computes what an uninterrupted one
does, to the last digit, on the same kind of machine with as many threads.

Not covered: several devices (one process, one device), and stopping a step that hangs (the agent's wall clock does).
"""

from __future__ import annotations

import ctypes
import dataclasses
import gc
import math
import os
import resource
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import FrameType, MappingProxyType
from typing import TYPE_CHECKING, Any, Literal, Self

import torch
import torch.nn.functional as F
from rich.console import Console
from torch import nn

from trainer import checkpoint, failures, finetune, flops, integrity, lora, optim
from trainer.budget import Budget
from trainer.config import DEFAULT_CORPUS, DEFAULT_TOKENIZER, ConfigError, Resolved, TrainConfig, cores, parse, resolve
from trainer.data.dataset import Dataset, cache_folder, prepare
from trainer.data.loader import PackedLoader, in_order
from trainer.failures import Interrupted, ModelFailure, models_fault
from trainer.metrics import Logger, Metrics, outside_logger
from trainer.models import ARCHITECTURES, architecture
from trainer.models.base import Architecture, ArchitectureConfig, LanguageModel
from trainer.progress import TrainingProgress
from trainer.randomness import random_state, restore_random_state, seed_everything
from trainer.recipe import overridden
from trainer.run import Run, Window, identity, introduce, keep, resume, write_whole
from trainer.sampling import PROMPTS, continuation

if TYPE_CHECKING:
    from lightning.fabric import Fabric

BASE = "trainer.models.base"

LINES = 200
"""Train lines over a whole run, fewer if it has fewer steps."""

TRIM_THRESHOLD, MMAP_MAX = -1, -4
"""Names of settings in glibc's malloc.h."""


class Interruption:
    """SIGTERM and SIGINT: in the loop the first is a wish, fulfilled after the step; elsewhere they stop at once."""

    def __init__(self) -> None:
        self.graceful = False
        self.asked = False

    def __enter__(self) -> Self:
        self.before = {number: signal.signal(number, self.heard) for number in (signal.SIGTERM, signal.SIGINT)}
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self.before.items():
            signal.signal(number, handler)

    def heard(self, number: int, frame: FrameType | None) -> None:
        if self.asked or not self.graceful:
            raise KeyboardInterrupt
        self.asked = True


# --- the way in -------------------------------------------------------------------------------------------------------


def command(argv: Sequence[str]) -> int:
    """`dailytrain train` and `python -m trainer.train`: return the exit code, all trouble told on standard error."""
    console = Console(stderr=True)
    try:
        config = parse(argv)
        with Interruption() as interruption:
            return main(config, console, interruption)
    except ValueError as error:
        return complain(" ".join(str(error).split()), failures.USER)
    except KeyboardInterrupt:
        return complain("interrupted", failures.INTERRUPTED)


def complain(sentence: str, code: int) -> int:
    """Say it in one line on standard error and return the exit code that goes with it."""
    sys.stderr.write(f"dailytrain train: {sentence}\n")
    return code


def main(config: TrainConfig, console: Console, interruption: Interruption) -> int:
    """Set up, train, and say how it ended. ValueErrors of the set-up are the user's and are passed on."""
    try:
        (config.out / "failure.json").unlink(missing_ok=True)
        with integrity.Guard(ARCHITECTURES.get(config.arch, BASE)) as guard:
            run = setup(config, console, guard)
            try:
                return fit_and_finish(run, console, interruption)
            except ValueError as error:
                # Input has been checked by now: this one is ours.
                raise RuntimeError(f"{type(error).__name__}: {error}") from error
    except ModelFailure as failure:
        if failure.__cause__ is not None:
            traceback.print_exception(failure.__cause__)
        failures.record(config.out, "model", str(failure))
        return complain(str(failure), failures.MODEL)
    except (ValueError, KeyboardInterrupt):
        raise
    except Exception as error:
        traceback.print_exc()
        reason = f"The training process broke: {type(error).__name__}: {' '.join(str(error).split())}"
        failures.record(config.out, "infrastructure", reason)
        return complain(reason, failures.INFRASTRUCTURE)


# --- setup ------------------------------------------------------------------------------------------------------------


def setup(config: TrainConfig, console: Console, guard: integrity.Guard) -> Run:
    """Everything before the first step: device, data, model, optimizers, and where an earlier process stopped."""
    device = pick_device(config)
    resolved = resolve(config, device)
    if config.arch not in ARCHITECTURES:
        architecture(config.arch)  # names the known ones
    with models_fault(f"while the architecture {config.arch} was imported"), flops.Meter() as imported:
        module = architecture(config.arch)
    logger = outside_logger(config.logger, config.out)
    base = None if config.from_ is None else finetune.find(config.from_)
    dataset = open_dataset(config, device, console)
    row, _ = next(in_order(dataset, "dev", 1, resolved.sequence_length))  # too little text is told now
    vocabulary_size = finetune.vocabulary_size(base, dataset, config.dataset is not None)
    model_config = configure(module, config, resolved, vocabulary_size, finetune.shape(base, config.arch))
    fabric = make_fabric(config, resolved, logger)
    seed_everything(config.seed)
    with models_fault("while the model was built"), flops.Meter() as built:
        bare = module.Model(model_config)
        declared = module.recipe(model_config)
    lineage = None if base is None else finetune.start(bare, base, dataset.tokenizer)
    if config.lora.rank:
        lora.adapt(bare, config.lora, vocabulary_size)
        declared = lora.recipe(declared, config.lora)
    recipe = overridden(declared, config.recipe)
    optim.check_installed(recipe)
    with models_fault("while its optimizers were built"):
        optimizers = optim.build(bare, recipe)
    bare.to(fabric.device)
    examine(bare, resolved, vocabulary_size, fabric.device)
    with models_fault("while its FLOPs were counted"):
        counted = flops.count(bare, row.to(fabric.device))
    integrity.refuse_early_work(imported.flops + built.flops, counted.per_token * resolved.tokens_per_step)
    seed_everything(config.seed)
    model, *optimizers = fabric.setup(compiled(bare) if resolved.compile else bare, *optimizers)
    run = Run(
        config=config,
        resolved=resolved,
        fabric=fabric,
        dataset=dataset,
        bare=bare,
        model=model,
        optimizers=optimizers,
        recipe=recipe,
        counted=counted,
        guard=guard,
        loader=PackedLoader(dataset, "train", resolved.batch, resolved.sequence_length, config.seed),
        identity=identity(config, resolved, model_config, recipe, dataset, lineage),
        lineage=lineage,
    )
    guard.keep(type(fabric), *map(type, optimizers))
    guard.check()
    introduce(run, console)
    resume(run, console)
    return run


def pick_device(config: TrainConfig) -> Literal["cpu", "cuda"]:
    if config.device == "cuda" and not torch.cuda.is_available():
        raise ConfigError("device cuda: torch finds no GPU here")
    if config.device == "auto":
        return "cuda" if torch.cuda.is_available() else "cpu"
    return config.device


def open_dataset(config: TrainConfig, device: str, console: Console) -> Dataset:
    """Open the dataset given, or prepare the corpus (or find it prepared)."""
    if config.dataset is not None:
        return Dataset.open(config.dataset)
    return prepare(
        config.corpus or DEFAULT_CORPUS,
        config.tokenizer or DEFAULT_TOKENIZER,
        # Where nothing may be written outside the run's folder, the dataset stays in it.
        folder=None if writable(cache_folder()) else config.out / "dataset",
        limit_bytes=config.text_limit(device),
        progress=True,
    )


def writable(folder: Path) -> bool:
    """May this process make or fill this folder?"""
    there = next(parent for parent in (folder, *folder.parents) if parent.exists())
    return os.access(there, os.W_OK)


def configure(
    module: Architecture,
    config: TrainConfig,
    resolved: Resolved,
    vocabulary_size: int,
    shape: Mapping[str, Any] = MappingProxyType({}),
) -> ArchitectureConfig:
    """Return the model's configuration: sized by the dial, shaped as the checkpoint it starts from, then with the
    fields that were given."""
    sized = module.Config.sized(resolved.depth, vocabulary_size, resolved.sequence_length)
    known = {field.name for field in dataclasses.fields(sized)} - {"vocabulary_size", "sequence_length"}
    sized = dataclasses.replace(sized, **{name: value for name, value in shape.items() if name in known})
    given = {name: value for name, value in config.model.items() if name in known}
    unknown = set(config.model) - known - {"depth"}
    if unknown:
        raise ConfigError(
            f"{config.arch} has no option {min(unknown)!r}; it has {', '.join(sorted({'depth', *known}))}"
        )
    for name, value in given.items():
        default = getattr(sized, name)
        if type(value) is not type(default) and not (isinstance(default, float) and isinstance(value, int)):
            raise ConfigError(f"model.{name} cannot be {value!r}: it is of type {type(default).__name__}")
    return dataclasses.replace(sized, **given)


def make_fabric(config: TrainConfig, resolved: Resolved, logger: Logger | None) -> Fabric:
    """Return Fabric for one device. Its import takes some seconds, which bad input should not have to wait for."""
    if resolved.device == "cpu":
        keep_memory()
    torch.set_num_threads(config.threads or cores())
    torch.set_float32_matmul_precision("high")  # TF32 where a GPU has it; changes nothing on a CPU
    # torch.compile keeps what it made below the home folder, which a sandbox may not have.
    os.environ.setdefault("TORCHINDUCTOR_CACHE_DIR", str(Path(tempfile.gettempdir()) / "dailytrain-inductor"))
    from lightning.fabric import Fabric

    fabric = Fabric(
        accelerator=resolved.device,
        devices=1,
        precision="bf16-mixed" if resolved.precision == "bf16" else "32-true",
        loggers=logger,
    )
    fabric.launch()
    return fabric


def keep_memory() -> None:
    """Have glibc keep the memory of large tensors for the next step instead of returning it to the kernel each time.

    Getting it back, zeroed page by page, took a fifth of a small model's CPU time (measured at depth 4). The process
    keeps to its end what its largest step needs.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(TRIM_THRESHOLD, 2**31 - 1)
        mallopt(MMAP_MAX, 0)


def examine(model: LanguageModel, resolved: Resolved, vocabulary_size: int, device: torch.device) -> None:
    """Ask the model once: logits of the right shape, finite, from a `LanguageModel`."""
    with models_fault("at its first answer"), torch.no_grad():
        logits = model(torch.zeros(2, resolved.sequence_length, dtype=torch.int64, device=device))
    wanted = (2, resolved.sequence_length, vocabulary_size)
    if tuple(logits.shape) != wanted:
        raise ModelFailure(f"The model answers with the shape {tuple(logits.shape)} where {wanted} is wanted.")
    if not logits.isfinite().all():
        raise ModelFailure("The model's first answer, before any training, is not finite.")


def compiled(model: nn.Module) -> nn.Module:
    return torch.compile(model, dynamic=False)


# --- the loop ---------------------------------------------------------------------------------------------------------


def fit_and_finish(run: Run, console: Console, interruption: Interruption) -> int:
    """Train until the budget is used or someone asks to stop; leave a checkpoint in either case."""
    logger = run.fabric.loggers[0] if run.fabric.loggers else None
    with Metrics(run.config.out / "metrics.jsonl", logger) as metrics, TrainingProgress(console) as progress:
        if run.resolved.compile and run.fraction < 1:
            warm_up(run)
        interruption.graceful = True
        try:
            fit(run, metrics, progress, interruption)
        except Interrupted:
            folder = keep(run)
            progress.say(f"interrupted; {folder.name} is kept, the same command goes on from there")
            return failures.INTERRUPTED
        run.guard.check()
        folder = checkpoint.path(run.config.out, run.spent.steps)
        if checkpoint.latest(run.config.out) != folder:
            keep(run)
        finish(run, folder)
        progress.say(
            f"done: {run.spent.steps:,} steps, {run.spent.tokens:,} tokens, {run.spent.seconds:.1f} s of training, "
            f"dev loss {run.dev['loss']:.4f} nats a token, {run.dev['bits_per_byte']:.4f} bits a byte"
        )
    return failures.DONE


def warm_up(run: Run) -> None:
    """Compile before the clock starts: compilation is ours and not charged. Leaves no trace in the model."""
    rows = torch.zeros(
        run.resolved.micro_batch, run.resolved.sequence_length, dtype=torch.int64, device=run.fabric.device
    )
    before = random_state()
    with models_fault("while it was compiled"):
        run.fabric.backward(F.cross_entropy(run.model(rows).flatten(0, 1), rows.flatten()) * 0)
    run.bare.zero_grad(set_to_none=True)
    restore_random_state(before)


def fit(run: Run, metrics: Metrics, progress: TrainingProgress, interruption: Interruption) -> None:
    """The training loop. Raises `Interrupted` between two steps and `ModelFailure` if the loss is lost."""
    if run.spent.steps == 0:
        validate(run, metrics, progress)
    interval, saved = run.config.checkpoint_interval(), time.monotonic()
    # The collector would pause training for up to half a second now and then, and find nothing.
    gc.collect()
    gc.freeze()
    gc.disable()
    try:
        while (before := run.fraction) < 1:
            started = time.perf_counter()
            loss, gradient_norm = train_step(run, before)
            account(run, loss, time.perf_counter() - started)
            if run.guard.due(before, run.fraction):
                look(run)
            if crosses(before, run.fraction, LINES):
                write_train_line(run, gradient_norm, metrics, progress)
            if crosses(before, run.fraction, run.resolved.evaluations):
                validate(run, metrics, progress)
                gc.collect()
            if interruption.asked:
                raise Interrupted
            if is_due(interval, run.spent.steps, saved):
                keep(run)
                saved = time.monotonic()
    finally:
        gc.enable()
        gc.unfreeze()


def train_step(run: Run, fraction: float) -> tuple[float, float]:
    """Make one optimizer step; return the batch's loss in nats per token and the norm of its gradient."""
    optim.set_rates(run.optimizers, run.recipe.schedule.scale(fraction))
    inputs, targets = run.loader.next()
    total = torch.zeros((), device=run.fabric.device)
    for part in range(0, run.resolved.batch, run.resolved.micro_batch):
        rows = slice(part, part + run.resolved.micro_batch)
        x, y = inputs[rows].to(run.fabric.device), targets[rows].to(run.fabric.device)
        with models_fault("in a forward pass"):
            # Each part's share of the whole batch's mean.
            loss = F.cross_entropy(run.model(x).flatten(0, 1).float(), y.flatten(), reduction="sum") / targets.numel()
        with models_fault("in a backward pass"):
            run.fabric.backward(loss)
        total += loss.detach()
    gradients = [parameter.grad for parameter in run.bare.parameters() if parameter.grad is not None]
    if not gradients:
        raise ModelFailure("No parameter of the model gets a gradient.")
    gradient_norm = torch.nn.utils.get_total_norm(gradients)
    # One wait for the device a step: the loss is needed to stop a run that has lost it.
    values = torch.stack([total, gradient_norm.to(total)]).tolist()
    if not all(math.isfinite(value) for value in values):
        what = "loss" if not math.isfinite(values[0]) else "gradient"
        raise ModelFailure(
            f"The {what} became {values[0] if what == 'loss' else values[1]} at step {run.spent.steps + 1} "
            f"({fraction:.0%} of the budget): training diverged. A lower learning rate or a longer warmup may help."
        )
    if run.recipe.clip is not None:
        torch.nn.utils.clip_grads_with_norm_(run.bare.parameters(), run.recipe.clip, gradient_norm)
    with models_fault("in an optimizer step"):
        for optimizer in run.optimizers:
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
    return values[0], values[1]


def look(run: Run) -> None:
    """At a random moment: is the loop still ours, and does the model do the work that was counted? Leaves no trace."""
    run.guard.check()
    row, _ = next(in_order(run.dataset, "dev", 1, run.resolved.sequence_length))
    before = random_state()
    buffers = [(buffer, buffer.clone()) for buffer in run.bare.buffers()]
    with models_fault("while its FLOPs were counted again"):
        run.counted = flops.recount(run.counted, run.bare, row.to(run.fabric.device))
    for buffer, value in buffers:
        buffer.copy_(value)
    restore_random_state(before)


def account(run: Run, loss: float, seconds: float) -> None:
    """Charge a step to the budget and to the next train line. Seconds are rounded, so that they can be written down."""
    seconds = round(seconds, 6)
    if run.budget.kind == "seconds":
        run.clock.append(round(seconds * 1e6))
    run.spent.steps += 1
    run.spent.tokens += run.resolved.tokens_per_step
    run.spent.flops = run.spent.tokens * run.flops_per_token
    run.spent.seconds += seconds
    run.window.losses += loss
    run.window.steps += 1
    run.window.seconds += seconds


def crosses(before: float, after: float, parts: int) -> bool:
    """Does the used fraction pass a multiple of 1 / parts?

    A function of the budget alone, so that a resumed run does the same things at the same steps.
    """
    return math.floor(after * parts + 1e-9) > math.floor(before * parts + 1e-9)


def is_due(interval: Budget, step: int, saved: float) -> bool:
    """Is it time for a checkpoint? Intervals in seconds are of the clock on the wall."""
    if interval.kind == "steps":
        return step % int(interval.amount) == 0
    return time.monotonic() - saved >= interval.amount


def position(run: Run) -> dict[str, float]:
    """What train and dev lines share."""
    return {"fraction": run.fraction, **{name: getattr(run.spent, name) for name in ("tokens", "flops", "seconds")}}


def write_train_line(run: Run, gradient_norm: float, metrics: Metrics, progress: TrainingProgress) -> None:
    window, run.window = run.window, Window()
    speed = window.steps * run.resolved.tokens_per_step / window.seconds
    peak = flops.peak(run.fabric.device)
    loss = window.losses / window.steps
    metrics.write(
        "train",
        run.spent.steps,
        **position(run),
        loss=loss,
        learning_rate=run.optimizers[0].param_groups[0]["lr"],
        gradient_norm=gradient_norm,
        tokens_per_second=speed,
        mfu=speed * run.flops_per_token / peak if peak else None,
        memory_bytes=memory_bytes(run.fabric.device),
    )
    progress.trained(run.spent.steps, run.fraction, loss, speed)


def memory_bytes(device: torch.device) -> int:
    """Return the most memory used so far: of the GPU, or of this process."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device)
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit


# --- evaluation -------------------------------------------------------------------------------------------------------


def validate(run: Run, metrics: Metrics, progress: TrainingProgress) -> None:
    """Measure the model on the same part of dev as always, and have it write. Not charged to the budget."""
    run.bare.eval()
    run.dev = dev_loss(run)
    run.bare.train()
    if not math.isfinite(run.dev["loss"]):
        raise ModelFailure(f"The loss on dev became {run.dev['loss']} at step {run.spent.steps}: training diverged.")
    metrics.write("dev", run.spent.steps, **position(run), **run.dev)
    text = f"dev loss {run.dev['loss']:.4f} nats a token, {run.dev['bits_per_byte']:.4f} bits a byte"
    progress.say(f"{run.fraction:4.0%}  step {run.spent.steps}, {text}")
    for prompt in PROMPTS if run.resolved.sample_tokens else ():
        metrics.write("sample", run.spent.steps, prompt=prompt, text=sample(run, prompt))


@torch.no_grad()
def dev_loss(run: Run) -> dict[str, float]:
    """Return nats per token and bits per byte of text. Targets that stand for no text (end of text) are left out, so
    that another tokenizer or a scorer of single documents measures the same thing."""
    resolved, device = run.resolved, run.fabric.device
    bytes_of = torch.from_numpy(run.dataset.tokenizer.byte_lengths()).to(device)
    nats = torch.zeros((), dtype=torch.float64, device=device)
    text_bytes = torch.zeros((), dtype=torch.int64, device=device)
    tokens = torch.zeros((), dtype=torch.int64, device=device)
    limit = max(1, resolved.dev_tokens // resolved.sequence_length)
    for inputs, targets in in_order(run.dataset, "dev", resolved.micro_batch, resolved.sequence_length, limit):
        y = targets.to(device).flatten()
        with models_fault("while it was evaluated"):
            losses = F.cross_entropy(run.model(inputs.to(device)).flatten(0, 1).float(), y, reduction="none")
        counted = bytes_of[y] > 0
        nats += losses[counted].double().sum()
        tokens += counted.sum()
        text_bytes += bytes_of[y].sum()
    return {"loss": float(nats / tokens), "bits_per_byte": float(nats / math.log(2) / text_bytes)}


def sample(run: Run, prompt: str) -> str:
    with models_fault("while it wrote a sample"), run.fabric.autocast():
        return continuation(
            run.bare,
            run.dataset.tokenizer,
            prompt,
            tokens=run.resolved.sample_tokens,
            seed=run.config.seed,
            context=run.resolved.sequence_length,
        )


def finish(run: Run, folder: Path) -> None:
    """Write `result.json`, last of all."""
    content = {
        "steps": run.spent.steps,
        "step": run.spent.steps,
        "tokens": run.spent.tokens,
        "train_flops": run.spent.flops,
        "flops_void": run.counted.void,
        "train_seconds": run.spent.seconds,
        "final_loss": run.dev["loss"],
        "bits_per_byte": run.dev["bits_per_byte"],
        "checkpoint": str(folder.relative_to(run.config.out)),
    }
    write_whole(run.config.out / "result.json", content)


if __name__ == "__main__":
    raise SystemExit(command(sys.argv[1:]))
