"""A run's `metrics.jsonl`: one JSON object per line, flushed at once, truncated when a run resumes at an earlier step.

    {"kind": "train", "step", "fraction", "tokens", "flops", "seconds", "loss", "learning_rate", "gradient_norm",
     "tokens_per_second", "mfu", "mfu_windowed", "memory_bytes", "spikes"}
    {"kind": "dev", "step", "fraction", "tokens", "flops", "seconds", "loss", "bits_per_byte"}
    {"kind": "sample", "step", "prompt", "text"}
Losses are nats per token, in a train line the mean since the previous line; `seconds` are those charged to the budget;
`learning_rate` is that of the first optimizer's first group (the matrices, in the baseline); `mfu` is the model's FLOPs
as a share of the devices' peak (measured for a CPU, see `run.json`; null if unknown), `mfu_windowed` only those of
matrix products, with attention counted over its windows, as nanochat counts; `spikes` are the updates skipped
so far. With a budget in steps, tokens or FLOPs only `seconds`, `tokens_per_second`, both MFUs and `memory_bytes` depend
on the clock or the machine's state.
"""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from typing import Any, Protocol, Self

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

from trainer.config.train_config import ConfigError


class MetricsLogger(Protocol):
    """The methods of Lightning's loggers that we use."""

    def log_hyperparams(self, params: dict[str, Any]) -> None:
        """Log the run's configuration."""

    def log_metrics(self, metrics: dict[str, float], step: int) -> None:
        """Log values."""

    def finalize(self, status: str) -> None:
        """Flush and end."""


class MetricsWriter:
    """Appends lines to a run's `metrics.jsonl` and logs their numbers to an external logger, if any."""

    def __init__(self, file: Path, logger: MetricsLogger | None = None) -> None:
        self.file = file
        self.logger = logger

    def __enter__(self) -> Self:
        self.stream = self.file.open("a", encoding="utf-8")
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self.stream.close()
        if self.logger is not None:
            self.logger.finalize("success" if kind is None else "failed")

    def truncate(self, step: int) -> None:
        """Delete the lines after a step, and a last line that is incomplete."""
        if not self.file.is_file():
            return
        partial = self.file.with_suffix(".partial")
        with self.file.open(encoding="utf-8") as lines, partial.open("w", encoding="utf-8") as stream:
            stream.writelines(line for line in lines if is_complete_until(line, step))
            stream.flush()
            os.fsync(stream.fileno())
        partial.replace(self.file)

    def write(self, kind: str, step: int, **values: Any) -> None:
        """Append a line. A reader of the file sees all of it or nothing."""
        self.stream.write(json.dumps({"kind": kind, "step": step, **values}) + "\n")
        self.stream.flush()
        if self.logger is not None:
            numbers = {f"{kind}/{name}": value for name, value in values.items() if isinstance(value, int | float)}
            self.logger.log_metrics(numbers, step=step)


def is_complete_until(line: str, step: int) -> bool:
    """Return whether this is a complete line of this or an earlier step."""
    if not line.endswith("\n"):
        return False
    try:
        return json.loads(line)["step"] <= step
    except (ValueError, TypeError, KeyError):
        return False


def build_logger(name: str, run_folder: Path, job_type: str, group: str | None = None) -> MetricsLogger | None:
    """Return Lightning's logger of that name, which writes below the run's folder, None for `none`.

    `job_type` and `group` are W&B's; without a group W&B reads WANDB_RUN_GROUP. Raise `ConfigError` if the logger is
    not installed.
    """
    if name == "none":
        return None
    try:
        if name == "tensorboard":
            from lightning_fabric.loggers import TensorBoardLogger

            return TensorBoardLogger(root_dir=run_folder, name="tensorboard")
        from lightning.pytorch.loggers import WandbLogger

        names = {"project": "dailytrain", "name": run_folder.name, "job_type": job_type, "group": group}
        return WandbLogger(save_dir=run_folder, **names)
    except ImportError as error:
        raise ConfigError(f"logger {name} is not installed: pip install 'dailytrain[loggers]'") from error


# --- progress ---------------------------------------------------------------------------------------------------------
# A run's progress on standard error: a bar in a terminal, a line every few seconds in a log.


LINE_SECONDS = 10  # between two lines of a log


class TrainingProgress:
    """Shows the used fraction of the budget and the last loss."""

    def __init__(self, console: Console) -> None:
        self.console = console
        self.bar = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            TextColumn("{task.percentage:>3.0f} %"),
            TimeRemainingColumn(),
            console=console,
            transient=True,
            disable=not console.is_terminal,
        )
        self.last_printed = time.monotonic()

    def __enter__(self) -> Self:
        self.bar.start()
        self.task = self.bar.add_task("training", total=1.0)
        return self

    def __exit__(self, *_: object) -> None:
        self.bar.stop()

    def update(self, step: int, fraction: float, loss: float, tokens_per_second: float) -> None:
        """Show the current step, loss and speed."""
        text = f"step {step}, loss {loss:.3f}, {tokens_per_second:,.0f} tokens/s"
        self.bar.update(self.task, completed=fraction, description=text)
        if not self.console.is_terminal and time.monotonic() - self.last_printed >= LINE_SECONDS:
            self.print_line(f"{fraction:4.0%}  {text}")

    def print_line(self, text: str) -> None:
        """Print a permanent line."""
        self.last_printed = time.monotonic()
        self.console.print(text, markup=False, highlight=False, soft_wrap=True)
