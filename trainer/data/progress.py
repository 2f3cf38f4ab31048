"""Progress of a preparation: bars on a terminal, a line every few seconds in a log."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import (
    BarColumn,
    DownloadColumn,
    Progress,
    TaskID,
    TextColumn,
    TimeElapsedColumn,
    TransferSpeedColumn,
)

LOG_INTERVAL = 15.0  # seconds between two lines in a log


class ProgressPhase:
    """Count and show the bytes that are done. A disabled `bar` means that the output is a log."""

    def __init__(self, bar: Progress, task: TaskID) -> None:
        self.done = 0
        self._bar, self._task, self._last = bar, task, time.monotonic()

    def advance(self, amount: int) -> None:
        self.done += amount
        self._bar.update(self._task, completed=self.done)
        if self._bar.disable and time.monotonic() - self._last >= LOG_INTERVAL:
            self._last = time.monotonic()
            title = self._bar.tasks[self._task].description
            self._bar.console.print(f"{title}: {self.done / (1 << 20):,.0f} MiB so far ...", markup=False)


@contextmanager
def show_phase(console: Console, title: str, total: int | None = None) -> Iterator[ProgressPhase]:
    """Show a phase of `total` bytes, None if the amount is unknown. A quiet console shows nothing."""
    columns = [TextColumn("{task.description:24}"), BarColumn(), DownloadColumn(binary_units=True)]
    columns += [TransferSpeedColumn(), TimeElapsedColumn()]
    if not console.is_terminal:
        console.print(f"{title} ...", markup=False)
    with Progress(*columns, console=console, disable=not console.is_terminal) as bar:
        yield ProgressPhase(bar, bar.add_task(title, total=total))
