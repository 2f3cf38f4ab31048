"""How far a preparation is, on standard error: bars on a terminal, a line a phase elsewhere."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeElapsedColumn, TransferSpeedColumn


@dataclass(slots=True)
class Phase:
    """A counter of bytes that a bar follows."""

    bar: Progress | None = None
    task: int = 0
    done: int = 0

    def advance(self, amount: int) -> None:
        self.done += amount
        if self.bar is not None:
            self.bar.advance(self.task, amount)  # type: ignore[arg-type]


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
            yield Phase()
        elif not self.console.is_terminal:
            self.say(f"{title} ...")
            yield Phase()
        else:
            columns = [TextColumn("{task.description:24}"), BarColumn(), DownloadColumn(binary_units=True)]
            with Progress(*columns, TransferSpeedColumn(), TimeElapsedColumn(), console=self.console) as bar:
                yield Phase(bar, bar.add_task(title, total=total))
