"""A run that is stopped at a certain step, in this process."""

from __future__ import annotations

from pathlib import Path

from rich.console import Console

from tests.support.tiny import TINY
from trainer.config.parsing import parse
from trainer.train import main
from trainer.training.interruption import Interruption


class AfterSteps(Interruption):
    """Asks to stop at the end of the n-th step."""

    def __init__(self, steps: int) -> None:
        self.left = steps
        super().__init__()

    @property
    def asked(self) -> bool:
        self.left -= 1
        return self.left <= 0

    @asked.setter
    def asked(self, value: bool) -> None:
        assert not value


def train(out: Path, *flags: object, stop_after: int | None = None) -> int:
    """Return the exit code of a tiny run."""
    interruption = Interruption() if stop_after is None else AfterSteps(stop_after)
    return main(parse(["--out", str(out), *TINY, *map(str, flags)]), Console(stderr=True, quiet=True), interruption)
