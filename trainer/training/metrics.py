"""A run's `metrics.jsonl`: one JSON object a line, on disk at once, cut back when a run goes on from an earlier step.

    {"kind": "train", "step", "fraction", "tokens", "flops", "seconds", "loss", "learning_rate", "gradient_norm",
     "tokens_per_second", "mfu", "memory_bytes", "spikes"}
    {"kind": "dev", "step", "fraction", "tokens", "flops", "seconds", "loss", "bits_per_byte"}
    {"kind": "sample", "step", "prompt", "text"}
Losses are nats per token, in a train line the mean since the line before; `seconds` are those charged to the budget;
`learning_rate` is that of the first optimizer's first group (the matrices, in the baseline); `mfu` is the part of the
devices' peak that went into the model's FLOPs (a CPU's peak is measured at the start and kept in `run.json`), null
where nobody knows it; `spikes` are the updates left out so far. With a budget in steps, tokens or FLOPs only `seconds`,
`tokens_per_second`, `mfu` and `memory_bytes` depend on the clock or the machine's state.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any, Protocol, Self

from trainer.config.train_config import ConfigError


class MetricsLogger(Protocol):
    """Lightning's loggers, as far as we use them."""

    def log_metrics(self, metrics: dict[str, float], step: int) -> None:
        """Send numbers."""

    def finalize(self, status: str) -> None:
        """Send what is left."""


class MetricsWriter:
    """Appends lines to a run's `metrics.jsonl`, and the numbers in them to an outside logger if there is one."""

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

    def cut_back(self, step: int) -> None:
        """Drop the lines after a checkpoint's step, and a last line that a kill cut short."""
        if not self.file.is_file():
            return
        aside = self.file.with_suffix(".partial")
        with self.file.open(encoding="utf-8") as lines, aside.open("w", encoding="utf-8") as stream:
            stream.writelines(line for line in lines if is_kept_line(line, step))
            stream.flush()
            os.fsync(stream.fileno())
        aside.replace(self.file)

    def write(self, kind: str, step: int, **values: Any) -> None:
        """Append a line; a reader of the file sees it whole."""
        self.stream.write(json.dumps({"kind": kind, "step": step, **values}) + "\n")
        self.stream.flush()
        if self.logger is not None:
            numbers = {f"{kind}/{name}": value for name, value in values.items() if isinstance(value, int | float)}
            self.logger.log_metrics(numbers, step=step)


def is_kept_line(line: str, step: int) -> bool:
    """Is this a whole line of a step up to this one?"""
    if not line.endswith("\n"):
        return False
    try:
        return json.loads(line)["step"] <= step
    except (ValueError, TypeError, KeyError):
        return False


def build_logger(name: str, run_folder: Path, group: str | None = None) -> MetricsLogger | None:
    """Return Lightning's logger of that name, writing below the run's folder; raise `ConfigError` if not installed.

    `group`: under which W&B keeps what belongs together.
    """
    if name == "none":
        return None
    try:
        if name == "tensorboard":
            from lightning.fabric.loggers import TensorBoardLogger

            return TensorBoardLogger(root_dir=run_folder, name="tensorboard")
        from lightning.pytorch.loggers import WandbLogger

        return WandbLogger(project="dailytrain", name=run_folder.name, save_dir=run_folder, group=group)
    except ImportError as error:
        raise ConfigError(f"logger {name} is not installed: pip install 'dailytrain[loggers]'") from error
