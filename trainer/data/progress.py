"""Progress of a preparation: bars on a terminal, lines in a log."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta

from rich.console import Console
from rich.progress import (
    BarColumn,
    DownloadColumn,
    Progress,
    TaskID,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
    TransferSpeedColumn,
)

LOG_INTERVAL = 15.0  # seconds between two lines in a log


class ProgressPhase:
    """Count and show the bytes that are done. A disabled `bar` means that the output is a log."""

    def __init__(self, bar: Progress, task: TaskID) -> None:
        self.done = self._start = int(bar.tasks[task].completed)
        self._bar, self._task, self._started = bar, task, time.monotonic()
        self._last = self._started

    def advance(self, amount: int) -> None:
        self.done += amount
        self._bar.update(self._task, completed=self.done)
        if self._bar.disable and time.monotonic() - self._last >= LOG_INTERVAL:
            self._last = time.monotonic()
            self._bar.console.print(self._format_line(), markup=False)

    def _format_line(self) -> str:
        task = self._bar.tasks[self._task]
        rate = (self.done - self._start) / max(self._last - self._started, 1e-9)
        amount = f"{self.done / (1 << 20):,.0f}" + (f" of {task.total / (1 << 20):,.0f}" if task.total else "")
        line = f"{task.description}: {amount} MiB, {rate / (1 << 20):,.1f} MiB/s"
        if task.total and rate:
            line += f", {timedelta(seconds=round((task.total - self.done) / rate))} left"
        return line


@contextmanager
def show_phase(console: Console, title: str, total: int | None = None, done: int = 0) -> Iterator[ProgressPhase]:
    """Show a phase of `total` bytes, None if the amount is unknown, that begins with `done`.

    A quiet console shows nothing.
    """
    columns = [TextColumn("{task.description:24}"), BarColumn(), DownloadColumn(binary_units=True)]
    columns += [TransferSpeedColumn(), TimeElapsedColumn(), TimeRemainingColumn()]
    if not console.is_terminal:
        console.print(f"{title} ...", markup=False)
    with Progress(*columns, console=console, disable=not console.is_terminal) as bar:
        yield ProgressPhase(bar, bar.add_task(title, total=total, completed=done))
