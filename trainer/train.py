"""Training: `setup -> main -> fit -> validate`, on Lightning Fabric.

The run's folder: `run.json` (what it is), `tokenizer.json`, `metrics.jsonl`, `checkpoints/`, at the end `result.json`,
or `failure.json`. Exit codes are in `trainer.errors`. Standard output stays empty; people read standard error.

With a budget in steps, tokens or FLOPs, a run that was killed and started again computes what an uninterrupted one
does, to the last digit, on the same kind of machine with as many threads.

With several devices there is one process for each, all running what is below; `trainer.distributed.launch` starts them.

Not covered: several machines, and stopping a step that hangs (the agent's wall clock does).
"""

from __future__ import annotations

import gc
import math
import sys
import time
import traceback
from collections.abc import Sequence
from pathlib import Path

import torch
from rich.console import Console

from trainer import errors
from trainer.accounting import flops
from trainer.accounting.budget import Budget
from trainer.checkpoint import store
from trainer.checkpoint.json_files import atomic_write_json
from trainer.config.parsing import parse_config
from trainer.config.train_config import TrainConfig
from trainer.data.errors import DamagedDatasetError
from trainer.data.loader import IGNORE_INDEX, iterate_in_order
from trainer.distributed import launch
from trainer.distributed.devices import memory_bytes
from trainer.distributed.strategies import agree, gradient_norm
from trainer.errors import ModelError, TrainingInterrupted, attribute_to_model
from trainer.models import ARCHITECTURES
from trainer.optim import optimizers
from trainer.training import entry_integrity
from trainer.training.activation_checkpointing import disable_activation_checkpointing
from trainer.training.evaluation import evaluate
from trainer.training.interruption import StopRequest
from trainer.training.metrics import MetricsWriter
from trainer.training.progress import TrainingProgress
from trainer.training.random_state import get_random_state, restore_random_state
from trainer.training.run import MetricsWindow, Run, get_metrics_path, save_checkpoint
from trainer.training.setup import build_run

BASE = "trainer.models.base"

LINES = 200
"""Train lines over a whole run, fewer if it has fewer steps."""

# --- the way in -------------------------------------------------------------------------------------------------------


def main(argv: Sequence[str]) -> int:
    """`dailytrain train` and `python -m trainer.train`: return the exit code, all trouble told on standard error."""
    try:
        config = parse_config(argv)
        with StopRequest() as interruption:
            if config.devices > 1 and not launch.is_launched():
                return launch.processes(argv, config, interruption)
            return run_training(config, Console(stderr=True, quiet=not launch.is_first()), interruption)
    except ValueError as error:
        return print_train_error(" ".join(str(error).split()), errors.ExitCode.USER_ERROR)
    except KeyboardInterrupt:
        return print_train_error("interrupted", errors.ExitCode.INTERRUPTED)


def print_train_error(sentence: str, code: int) -> int:
    """Say it in one line on standard error and return the exit code that goes with it."""
    if not launch.report(sentence, code):
        sys.stderr.write(f"dailytrain train: {sentence}\n")
    return code


def run_training(config: TrainConfig, console: Console, interruption: StopRequest) -> int:
    """Set up, train, and say how it ended. ValueErrors of the set-up are the user's and are passed on."""
    try:
        (config.out / "failure.json").unlink(missing_ok=True)
        with entry_integrity.EntryIntegrity(ARCHITECTURES.get(config.arch, BASE)) as guard:
            run = build_run(config, console, guard)
            try:
                return fit_and_finish(run, console, interruption)
            except DamagedDatasetError:
                raise
            except ValueError as error:
                # Input has been checked by now: this one is ours.
                raise RuntimeError(f"{type(error).__name__}: {error}") from error
            finally:
                run.loader.close()
                run.writer.close()
    except KeyboardInterrupt:
        raise
    except Exception as error:
        if isinstance(error, ValueError) and not isinstance(error, DamagedDatasetError):
            raise
        return report_failure(config, error)


def report_failure(config: TrainConfig, error: Exception) -> int:
    """Tell how a run broke, in one line, before it the traceback where nobody expected it; return the exit code."""
    model = isinstance(error, ModelError)
    if not errors.is_expected(error):
        traceback.print_exception(error.__cause__ or error)
    reason = str(error) if model else errors.describe_error(error)
    if reason:
        errors.write_failure(config.out, "model" if model else "infrastructure", reason)
    return print_train_error(reason, errors.ExitCode.MODEL_ERROR if model else errors.ExitCode.INFRASTRUCTURE)


# --- the loop ---------------------------------------------------------------------------------------------------------


def fit_and_finish(run: Run, console: Console, interruption: StopRequest) -> int:
    """Train until the budget is used or someone asks to stop; leave a checkpoint in either case."""
    logger = run.fabric.loggers[0] if run.fabric.loggers else None
    with MetricsWriter(get_metrics_path(run), logger) as metrics, TrainingProgress(console) as progress:
        interruption.is_graceful = True
        try:
            fit(run, metrics, progress, interruption)
        except TrainingInterrupted:
            folder = save_checkpoint(run)
            progress.say(f"interrupted; {folder.name} is kept, the same command goes on from there")
            return errors.ExitCode.INTERRUPTED
        run.integrity.check()
        folder = store.path(run.config.out, run.usage.steps)
        run.writer.wait()
        if run.last_checkpoint != folder:
            save_checkpoint(run)
        write_result(run, folder)
        progress.say(
            f"done: {run.usage.steps:,} steps, {run.usage.tokens:,} tokens, {run.usage.seconds:.1f} s of training, "
            f"dev loss {run.dev['loss']:.4f} nats a token, {run.dev['bits_per_byte']:.4f} bits a byte"
        )
    return errors.ExitCode.OK


def fit(run: Run, metrics: MetricsWriter, progress: TrainingProgress, interruption: StopRequest) -> None:
    """The training loop. Raises `Interrupted` between two steps and `ModelFailure` if the loss is lost."""
    if run.usage.steps == 0:
        evaluate(run, metrics, progress)
    interval, saved = run.config.checkpoint_interval, time.monotonic()
    # The collector would pause training for up to half a second now and then, and find nothing.
    gc.collect()
    gc.freeze()
    gc.disable()
    try:
        while (before := run.fraction) < 1:
            run.writer.check()
            started = time.perf_counter()
            loss, norm = train_step(run, before)
            seconds, due = time.perf_counter() - started, is_due(interval, run.usage.steps + 1, saved)
            loss, seconds, asked, due = agree(run.fabric, (loss, seconds, interruption.is_requested, due))
            charge_step(run, loss, seconds)
            if run.integrity.due(before, run.fraction):
                recheck_integrity(run)
            if crosses(before, run.fraction, LINES):
                write_train_line(run, norm, metrics, progress)
            if crosses(before, run.fraction, run.resolved.evaluations):
                evaluate(run, metrics, progress)
                gc.collect()
            if asked:
                raise TrainingInterrupted
            if due:
                save_checkpoint(run, beside=True)
                saved = time.monotonic()
    finally:
        gc.enable()
        gc.unfreeze()


def train_step(run: Run, fraction: float) -> tuple[float, float]:
    """Make one optimizer step; return the batch's loss in nats per token and the norm of its gradient."""
    optimizers.set_rates(run.optimizers, run.recipe.schedule.scale(fraction, run.usage.steps))
    inputs, targets = run.loader.next_batch()
    total = torch.zeros((), device=run.fabric.device)
    learned = max(1, int((targets != IGNORE_INDEX).sum()))
    for part in range(0, run.resolved.rows_per_device, run.resolved.micro_batch):
        rows = slice(part, part + run.resolved.micro_batch)
        x, y = (half[rows].to(run.fabric.device, non_blocking=True) for half in (inputs, targets))
        # Other devices are waited for once a step.
        with run.fabric.no_backward_sync(run.model, enabled=rows.stop < run.resolved.rows_per_device):
            with attribute_to_model("in a forward pass"):
                # Each part's share of the mean over this device's targets; gradients are averaged over devices.
                loss = run.model(x, y) / learned
            with attribute_to_model("in a backward pass"):
                run.fabric.backward(loss)
        total += loss.detach()
    norm = gradient_norm(list(run.raw_model.parameters()))
    if norm is None:
        raise ModelError("No parameter of the model gets a gradient.")
    # One wait for the device a step: the loss is needed to stop a run that has lost it.
    values = torch.stack([total, norm.to(total)]).tolist()
    check_finite(run, fraction, *values)
    if run.spike_filter.admits(values[1], run.usage.steps + 1):
        with attribute_to_model("in an optimizer step"):
            update(run, values[1])
    for optimizer in run.optimizers:
        optimizer.zero_grad(set_to_none=True)
    return values[0], values[1]


def check_finite(run: Run, fraction: float, loss: float, norm: float) -> None:
    """Raise `ModelFailure` if the loss or the gradient's norm is no number any more."""
    if not (math.isfinite(loss) and math.isfinite(norm)):
        what = "gradient" if math.isfinite(loss) else "loss"
        raise ModelError(
            f"The {what} became {norm if what == 'gradient' else loss} at step {run.usage.steps + 1} "
            f"({fraction:.0%} of the budget): training diverged. A lower learning rate or a longer warmup may help."
        )


def update(run: Run, norm: float) -> None:
    """Move the weights; `norm` is that of all gradients together."""
    if run.recipe.clip is not None and norm > run.recipe.clip:
        gradients = [parameter.grad for parameter in run.raw_model.parameters() if parameter.grad is not None]
        torch._foreach_mul_(gradients, run.recipe.clip / norm)
    for optimizer in run.optimizers:
        optimizer.step()


def recheck_integrity(run: Run) -> None:
    """At a random moment: is the loop still ours, and does the model do the work that was counted? Leaves no trace."""
    run.integrity.check()
    if run.resolved.is_sharded:
        return  # no process has the whole model
    row, _ = next(iterate_in_order(run.dataset, "dev", 1, run.resolved.sequence_length))
    before = get_random_state()
    buffers = [(buffer, buffer.clone()) for buffer in run.raw_model.buffers()]
    with attribute_to_model("while its FLOPs were counted again"), disable_activation_checkpointing(run.raw_model):
        row = row[:, : run.resolved.chunk_tokens].to(run.fabric.device)
        run.flop_count = flops.recount_flops(run.flop_count, run.raw_model, row)
    for buffer, value in buffers:
        buffer.copy_(value)
    restore_random_state(before)


def charge_step(run: Run, loss: float, seconds: float) -> None:
    """Charge a step to the budget and to the next train line. Seconds are rounded, so that they can be written down."""
    seconds = round(seconds, 6)
    if run.budget.kind == "seconds":
        run.step_microseconds.append(round(seconds * 1e6))
    run.usage.steps += 1
    run.usage.tokens += run.resolved.tokens_per_step
    run.usage.flops = run.usage.tokens * run.flops_per_token
    run.usage.seconds += seconds
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


def write_train_line(run: Run, gradient_norm: float, metrics: MetricsWriter, progress: TrainingProgress) -> None:
    window, run.window = run.window, MetricsWindow()
    speed = window.steps * run.resolved.tokens_per_step / window.seconds
    loss = window.losses / window.steps
    metrics.write(
        "train",
        run.usage.steps,
        **run.position(),
        loss=loss,
        learning_rate=run.optimizers[0].param_groups[0]["lr"],
        gradient_norm=gradient_norm,
        tokens_per_second=speed,
        mfu=speed * run.flops_per_token / (run.peak_flops * run.resolved.devices) if run.peak_flops else None,
        memory_bytes=memory_bytes(run.fabric.device),
        spikes=run.spike_filter.skipped,
    )
    progress.trained(run.usage.steps, run.fraction, loss, speed)


def write_result(run: Run, folder: Path) -> None:
    """Write `result.json`, last of all."""
    if not run.fabric.is_global_zero:
        return
    content = {
        "steps": run.usage.steps,
        "step": run.usage.steps,
        "tokens": run.usage.tokens,
        "train_flops": run.usage.flops,
        "flops_void": run.flop_count.void,
        "train_seconds": run.usage.seconds,
        "compile_seconds": run.compile_seconds,
        "spikes": run.spike_filter.skipped,
        "final_loss": run.dev["loss"],
        "bits_per_byte": run.dev["bits_per_byte"],
        "checkpoint": str(folder.relative_to(run.config.out)),
    }
    atomic_write_json(run.config.out / "result.json", content)


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
