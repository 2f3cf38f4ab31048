"""How far a preparation is, on standard error: bars on a terminal, a line now and then in a log."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeElapsedColumn, TransferSpeedColumn

PATIENCE = 15.0  # seconds between two lines of a log


class Phase:
    """Counts the bytes that are done, and passes them on."""

    def __init__(self, show: Callable[[int], None]) -> None:
        self._show = show
        self.done = 0

    def advance(self, amount: int) -> None:
        self.done += amount
        self._show(self.done)


@dataclass(slots=True)
class Reporter:
    """Says what goes on, or nothing when it is not wanted."""

    wanted: bool = True
    console: Console = field(default_factory=lambda: Console(stderr=True, soft_wrap=True, highlight=False))

    def say(self, sentence: str) -> None:
        if self.wanted:
            self.console.print(sentence, markup=False)

    @contextmanager
    def phase(self, title: str, total: int | None = None) -> Iterator[Phase]:
        """`total` bytes of work; None where the end is not known."""
        if not self.wanted:
            yield Phase(lambda _: None)
        elif not self.console.is_terminal:
            self.say(f"{title} ...")
            yield Phase(self._lines(title))
        else:
            columns = [TextColumn("{task.description:24}"), BarColumn(), DownloadColumn(binary_units=True)]
            with Progress(*columns, TransferSpeedColumn(), TimeElapsedColumn(), console=self.console) as bar:
                task = bar.add_task(title, total=total)
                yield Phase(lambda done: bar.update(task, completed=done))

    def _lines(self, title: str) -> Callable[[int], None]:
        last = time.monotonic()

        def show(done: int) -> None:
            nonlocal last
            if time.monotonic() - last >= PATIENCE:
                last = time.monotonic()
                self.say(f"{title}: {done / (1 << 20):,.0f} MiB so far ...")

        return show
