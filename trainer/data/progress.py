"""Progress of a preparation: bars on a terminal, lines in a log, and calls of a function for other programs."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

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
REPORT_INTERVAL = 1.0  # seconds between two calls of `Report`
Report = Callable[[str, int, int | None], None]
"""Called with a phase's title, its bytes of text so far, and in all; None if that is unknown."""


class ProgressConsole(Console):
    """A console whose phases also call `report`, if there is one, at their begin, each second and at their end."""

    def __init__(self, report: Report | None = None, **options: Any) -> None:
        super().__init__(**options)
        self.report = report


class ProgressPhase:
    """Count and show the bytes that are done. A disabled `bar` means that the output is a log."""

    def __init__(self, bar: Progress, task: TaskID, report: Report | None = None) -> None:
        self.done = self._start = int(bar.tasks[task].completed)
        self._bar, self._task, self._report, self._started = bar, task, report, time.monotonic()
        self._last = self._reported = self._started
        self.report()

    def advance(self, amount: int) -> None:
        self.done += amount
        self._bar.update(self._task, completed=self.done)
        if self._bar.disable and time.monotonic() - self._last >= LOG_INTERVAL:
            self._last = time.monotonic()
            self._bar.console.print(self._format_line(), markup=False)
        if time.monotonic() - self._reported >= REPORT_INTERVAL:
            self._reported = time.monotonic()
            self.report()

    def report(self) -> None:
        if self._report:
            task = self._bar.tasks[self._task]
            self._report(task.description, self.done, int(task.total) if task.total else None)

    def _format_line(self) -> str:
        task = self._bar.tasks[self._task]
        rate = (self.done - self._start) / max(self._last - self._started, 1e-9)
        amount = f"{self.done / (1 << 20):,.0f}" + (f" of {task.total / (1 << 20):,.0f}" if task.total else "")
        line = f"{task.description}: {amount} MiB, {rate / (1 << 20):,.1f} MiB/s"
        if task.total and rate:
            line += f", {timedelta(seconds=round((task.total - self.done) / rate))} left"
        return line


@contextmanager
def show_phase(
    console: ProgressConsole, title: str, total: int | None = None, done: int = 0
) -> Iterator[ProgressPhase]:
    """Show a phase of `total` bytes, None if the amount is unknown, that begins with `done`.

    A quiet console shows nothing.
    """
    columns = [TextColumn("{task.description:24}"), BarColumn(), DownloadColumn(binary_units=True)]
    columns += [TransferSpeedColumn(), TimeElapsedColumn(), TimeRemainingColumn()]
    if not console.is_terminal:
        console.print(f"{title} ...", markup=False)
    with Progress(*columns, console=console, disable=not console.is_terminal) as bar:
        phase = ProgressPhase(bar, bar.add_task(title, total=total, completed=done), console.report)
        yield phase
        phase.report()
