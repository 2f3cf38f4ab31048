"""Tiny runs in this process, which can be stopped at a certain step."""

from __future__ import annotations

from pathlib import Path

from rich.console import Console

from tests.support.metrics_lines import numbers
from tests.support.tiny import TINY
from trainer.checkpoint.store import find_latest_checkpoint
from trainer.config.parsing import parse_config
from trainer.errors import ExitCode
from trainer.train import run_training
from trainer.training.run import StopRequest


class AfterSteps(StopRequest):
    """Requests a stop at the end of the n-th step."""

    def __init__(self, steps: int) -> None:
        self.left = steps
        super().__init__()

    @property
    def is_requested(self) -> bool:
        self.left -= 1
        return self.left <= 0

    @is_requested.setter
    def is_requested(self, value: bool) -> None:
        assert not value


def train(out: Path, *flags: object, tiny: tuple[str, ...] = TINY, stop_after: int | None = None) -> int:
    """Train a tiny run and return its exit code."""
    interruption = StopRequest() if stop_after is None else AfterSteps(stop_after)
    return run_training(
        parse_config(["--out", str(out), *tiny, *map(str, flags)]), Console(stderr=True, quiet=True), interruption
    )


def check_resume(folder: Path, *flags: object, tiny: tuple[str, ...] = TINY, stop_after: int = 3) -> None:
    """Train whole runs, one of which is stopped, and compare numbers and last weights to the last bit."""
    whole, stopped = folder / "whole", folder / "stopped"
    assert train(whole, *flags, tiny=tiny) == ExitCode.OK
    assert train(stopped, *flags, tiny=tiny, stop_after=stop_after) == ExitCode.INTERRUPTED
    assert train(stopped, *flags, tiny=tiny) == ExitCode.OK
    assert numbers(stopped) == numbers(whole)
    ours, theirs = (find_latest_checkpoint(out) / "model.safetensors" for out in (stopped, whole))  # type: ignore[operator]
    assert ours.read_bytes() == theirs.read_bytes()
