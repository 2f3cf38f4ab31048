"""Trials in this process, one after another, since starting a process takes seconds."""

from __future__ import annotations

import contextlib
import io
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from rich.console import Console

from trainer.cli import score
from trainer.config.parsing import parse_config
from trainer.errors import ExitCode
from trainer.train import run_training
from trainer.training.run import StopRequest
from trainer.trials.trial_runner import TrialError, TrialModelError, TrialRunner


def train(argv: Sequence[str]) -> int:
    """Run `trainer.train` without its signal handlers, which only the main thread may set."""
    return run_training(parse_config(argv), Console(stderr=True, quiet=True), StopRequest())


ENTRY_POINTS: dict[str, Callable[[Sequence[str]], int]] = {
    "trainer.train": train,
    "trainer.cli": lambda argv: score.main([*argv[1:], "--limit-tokens", "64"]),
}


@dataclass
class InProcessTrialRunner(TrialRunner):
    """Runs the same commands in this process, and scores less text."""

    stop_before: int | None = None  # raise KeyboardInterrupt instead of this training, counted from 0
    trained: int = 0

    def run_module(self, command: Sequence[str]) -> str:
        module, *argv = command
        if module == "trainer.train":
            if self.trained == self.stop_before:
                raise KeyboardInterrupt
            self.trained += 1
        with contextlib.redirect_stdout(io.StringIO()) as output, contextlib.redirect_stderr(io.StringIO()) as errors:
            code = ENTRY_POINTS[module](argv)
        if code:
            raise (TrialModelError if code == ExitCode.MODEL_ERROR else TrialError)(errors.getvalue())
        return output.getvalue()
