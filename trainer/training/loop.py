"""The training loop: `fit` runs steps until the budget is used, `train_step` launches one.

With a budget in steps, tokens or FLOPs, a run that was killed and resumed computes what an uninterrupted one does, to
the last digit, on the same kind of machine with the same number of threads.

Not covered: several machines, and stopping a step that hangs (the node's time limit does).
"""

from __future__ import annotations

import gc
import math
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

import torch
from rich.console import Console
from torch import Tensor, nn
from torch.optim import Optimizer

from trainer.accounting.budget import Budget
from trainer.checkpoint.store import get_checkpoint_path
from trainer.data.loader import IGNORE_INDEX
from trainer.distributed.devices import (
    average_across_processes,
    average_tensor,
    compute_gradient_norm,
    get_peak_memory_bytes,
)
from trainer.errors import RESUME_HINT, ExitCode, ModelError, TrainingInterrupted, attribute_to_model
from trainer.optim import optimizers as optim
from trainer.training.checkpointing import save_checkpoint, save_milestone, write_result
from trainer.training.evaluation import evaluate
from trainer.training.grad_spikes import GradientSpikeFilter
from trainer.training.interruption import StopRequest
from trainer.training.metrics import MetricsWriter
from trainer.training.progress import TrainingProgress
from trainer.training.random_state import seed_step
from trainer.training.run import MetricsWindow, Run
from trainer.training.step_values import StepValues

if TYPE_CHECKING:
    from lightning_fabric import Fabric

TRAIN_LINES = 200  # train lines over a whole run, fewer if it has fewer steps


def fit_and_finish(run: Run, console: Console, stop: StopRequest) -> int:
    """Train until the budget is used or a stop is requested; save a checkpoint in either case."""
    logger = run.fabric.loggers[0] if run.fabric.loggers else None
    if logger is not None:
        logger.log_hyperparams(run.identity)
    with MetricsWriter(run.metrics_path, logger) as metrics, TrainingProgress(console) as progress:
        stop.is_graceful = True
        try:
            fit(run, metrics, progress, stop)
        except TrainingInterrupted:
            folder = save_checkpoint(run)
            progress.print_line(f"interrupted after saving {folder.name}. {RESUME_HINT}")
            return ExitCode.INTERRUPTED
        folder = get_checkpoint_path(run.config.out, run.usage.steps)
        run.writer.wait()
        if run.last_checkpoint != folder:
            save_checkpoint(run, is_final=True)
        write_result(run, folder)
        progress.print_line(
            f"done: {run.usage.steps:,} steps, {run.usage.tokens:,} tokens, {run.usage.seconds:.1f} s of training, "
            f"dev loss {run.dev['loss']:.4f} nats a token, {run.dev['bits_per_byte']:.4f} bits a byte"
        )
    return ExitCode.OK


def fit(run: Run, metrics: MetricsWriter, progress: TrainingProgress, stop: StopRequest) -> None:
    """Train until the budget is used. Raise `TrainingInterrupted` between two steps, `ModelError` if it diverges."""
    if run.usage.steps == 0:
        evaluate(run, metrics, progress)
    interval, saved_at = run.config.checkpoint_interval, time.monotonic()
    with pause_garbage_collection():
        while (before := run.fraction) < 1:
            run.writer.check()
            started, charged = time.perf_counter(), run.usage.seconds
            run_step(run, before)
            seconds = time.perf_counter() - started
            is_due = is_checkpoint_due(interval, run.usage.steps + 1, saved_at)
            # Averaged, so that all devices take the same decisions.
            values = (seconds, stop.is_requested, is_due)
            seconds, must_stop, is_due = average_across_processes(run.fabric, values)
            charge_step(run, seconds)
            if not (must_stop or is_due or is_pause_due(run, before)):
                continue
            norm, waited = read_last_step(run)
            charge_seconds(run, charged, seconds + waited)
            if milestone := find_passed_milestone(before, run.fraction, run.config.milestones):
                save_milestone(run, milestone)
            if crosses_interval(before, run.fraction, TRAIN_LINES):
                write_train_line(run, norm, metrics, progress)
            if crosses_interval(before, run.fraction, run.resolved.evaluations):
                evaluate(run, metrics, progress)
                gc.collect()
            if run.fraction >= 1:
                break  # its last checkpoint has another content
            if must_stop:
                raise TrainingInterrupted
            if is_due:
                save_checkpoint(run, wait=False)
                saved_at = time.monotonic()


def is_pause_due(run: Run, before: float) -> bool:
    """Return whether something follows a step that needs its values or weights. `before`: the used fraction before."""
    after = run.fraction
    if after >= 1 or find_passed_milestone(before, after, run.config.milestones):
        return True
    return any(crosses_interval(before, after, parts) for parts in (TRAIN_LINES, run.resolved.evaluations))


@contextmanager
def pause_garbage_collection() -> Iterator[None]:
    """Pause Python's garbage collector, which would stop training for up to half a second and find nothing.

    Without effect if the caller has frozen objects itself.
    """
    if gc.get_freeze_count():
        yield
        return
    gc.collect()
    gc.freeze()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()
        gc.unfreeze()


def run_step(run: Run, fraction: float) -> StepValues:
    """Launch the next step, and read the values of the one before, which the GPU has computed by then.

    `fraction`: the used part of the budget.
    """
    optim.apply_schedule(run.optimizers, run.recipe, fraction, run.usage.steps)
    before = run.unread
    seed_step(run.config.seed, run.usage.steps, run.fabric.global_rank)
    run.unread = train_step(
        run.fabric,
        run.model,
        run.optimizers,
        run.loader.next_batch(),
        run.resolved.micro_batch,
        run.spike_filter,
        clip=run.recipe.clip,
        step=run.usage.steps + 1,
        fraction=fraction,
        before=before,
    )
    if before is not None:
        run.window.losses += before.read()[0]
    return run.unread


def read_last_step(run: Run) -> tuple[float, float]:
    """Return the last step's gradient norm and the seconds that it took to wait for it.

    Raise `DivergenceError` if training diverged.
    """
    assert run.unread is not None, "each step is read once"
    started = time.perf_counter()
    loss, norm = run.unread.read()
    run.unread = None
    run.window.losses += loss
    return norm, average_across_processes(run.fabric, [time.perf_counter() - started])[0]


def train_step(
    fabric: Fabric,
    model: nn.Module,
    optimizers: Sequence[Optimizer],
    batch: tuple[Tensor, Tensor],
    micro_batch: int,
    spike_filter: GradientSpikeFilter,
    clip: float | None = None,
    step: int = 1,
    fraction: float = 0.0,
    before: StepValues | None = None,
) -> StepValues:
    """Launch one optimizer step on this device's rows `[B, T]` of inputs and targets.

    Return the loss in nats per token, over all devices, and the norm of the gradient, to be read. `before`: those of
    the step before, which are read between this step's passes and its update. `step` and `fraction` are for messages.
    """
    total = accumulate_gradients(fabric, model, batch, micro_batch)
    parameters = list(model.parameters())
    norm = compute_gradient_norm(parameters)
    if norm is None:
        raise ModelError("No parameter of the model gets a gradient.")
    if before is not None:
        before.read()
    values = StepValues(average_tensor(fabric, total), norm, spike_filter, clip, step, fraction)
    with attribute_to_model("in an optimizer step", micro_batch):
        update_weights(parameters, optimizers, norm, values.is_accepted, clip)
    for optimizer in optimizers:
        optimizer.zero_grad(set_to_none=True)
    return values


def accumulate_gradients(fabric: Fabric, model: nn.Module, batch: tuple[Tensor, Tensor], micro_batch: int) -> Tensor:
    """Run forward and backward over a step's micro-batches; return this device's part of the loss.

    The sum of losses is divided by the mean number of targets per device, without ignored ones. Averaging over
    devices, as is done with gradients, then gives the mean over all targets of the step.
    """
    inputs, targets = batch
    objective = getattr(model, "module", model)
    target_count = max(1.0, average_across_processes(fabric, [float((targets != IGNORE_INDEX).sum())])[0])
    total = torch.zeros((), device=fabric.device)
    for start in range(0, len(inputs), micro_batch):
        rows = slice(start, start + micro_batch)
        x, y = (tensor[rows].to(fabric.device, non_blocking=True) for tensor in batch)
        # Exchange gradients only in the last micro-batch.
        with fabric.no_backward_sync(model, enabled=rows.stop < len(inputs)):
            if hasattr(objective, "unshard") and 0 < objective.chunk < x.size(1):  # FSDP's
                from trainer.training.chunked_bptt import ShardedRows

                with attribute_to_model("in a pass over a row's chunks", micro_batch):
                    loss = ShardedRows(model, objective, x, y, 1 / target_count).run_passes()
            else:
                with attribute_to_model("in a forward pass", micro_batch):
                    loss = model(x, y) / target_count
                with attribute_to_model("in a backward pass", micro_batch):
                    fabric.backward(loss)
        total += loss.detach()
    return total


def update_weights(
    parameters: Sequence[nn.Parameter],
    optimizers: Sequence[Optimizer],
    norm: Tensor,
    is_accepted: Tensor,
    clip: float | None,
) -> None:
    """Clip the gradients, whose norm is `norm`, and step the optimizers if `is_accepted`, without waiting for a GPU
    whose optimizers can read that there."""
    can_skip = optim.set_skipped(optimizers, ~is_accepted)
    if not can_skip and not is_accepted:
        return
    if clip is not None:
        factor = (clip / norm.double()).clamp(max=1.0)
        gradients = [parameter.grad for parameter in parameters if parameter.grad is not None]
        torch._foreach_mul_(gradients, factor.to(norm.dtype) if can_skip else float(factor))
    for optimizer in optimizers:
        optimizer.step()


def charge_step(run: Run, seconds: float) -> None:
    """Charge a step to the budget and to the next train line."""
    run.usage.steps += 1
    run.usage.tokens += run.resolved.tokens_per_step
    run.usage.flops = run.initial_flops + run.usage.tokens * run.flops_per_token
    run.window.steps += 1
    if run.budget.kind == "seconds":
        run.step_microseconds.append(0)
    charge_seconds(run, run.usage.seconds, seconds)


def charge_seconds(run: Run, before: float, seconds: float) -> None:
    """Set the last step's time, rounded to what a checkpoint stores. `before`: the used seconds without it."""
    seconds = round(seconds, 6)
    if run.budget.kind == "seconds":
        run.step_microseconds[-1] = round(seconds * 1e6)
    run.window.seconds += before + seconds - run.usage.seconds
    run.usage.seconds = before + seconds


def crosses_interval(before: float, after: float, parts: int) -> bool:
    """Return whether the used fraction passes a multiple of 1 / parts.

    It depends on the budget alone, so a resumed run does the same things at the same steps.
    """
    return math.floor(after * parts + 1e-9) > math.floor(before * parts + 1e-9)


def find_passed_milestone(before: float, after: float, every: int) -> int | None:
    """Return the last multiple of `every` percent, below 100, that the used fraction passes; None if there is none."""
    if not every:
        return None
    start, end = (math.floor(fraction * 100 / every + 1e-9) * every for fraction in (before, after))
    end = min(end, 99 // every * every)
    return end if end > start else None


def is_checkpoint_due(interval: Budget, step: int, saved_at: float) -> bool:
    """Return whether it is time for a checkpoint. An interval in seconds is wall-clock time since `saved_at`."""
    if interval.kind == "steps":
        return step % int(interval.amount) == 0
    return time.monotonic() - saved_at >= interval.amount


def write_train_line(run: Run, norm: float, metrics: MetricsWriter, progress: TrainingProgress) -> None:
    window, run.window = run.window, MetricsWindow()
    speed = window.steps * run.resolved.tokens_per_step / window.seconds
    loss = window.losses / window.steps
    metrics.write(
        "train",
        run.usage.steps,
        **run.get_progress_metrics(),
        loss=loss,
        learning_rate=run.optimizers[0].param_groups[0]["lr"],
        gradient_norm=norm,
        tokens_per_second=speed,
        **run.compute_mfu(speed),
        memory_bytes=get_peak_memory_bytes(run.fabric.device),
        spikes=run.spike_filter.skipped,
    )
    progress.update(run.usage.steps, run.fraction, loss, speed)
