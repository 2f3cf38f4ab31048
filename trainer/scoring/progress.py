"""Progress of the scorer on standard error: a bar on a terminal, one line per stage in a log."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator

from rich.console import Console
from rich.progress import BarColumn, SpinnerColumn, TextColumn, TimeElapsedColumn
from rich.progress import Progress as Bars

ProgressCallback = Callable[[str, float], None]  # called with the current stage and the completed fraction of it


@contextlib.contextmanager
def show_progress() -> Iterator[ProgressCallback]:
    console = Console(stderr=True)
    if not console.is_terminal:
        yield log_stages()
        return
    columns = SpinnerColumn(), TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn()
    with Bars(*columns, console=console, transient=True) as bars:
        bar = bars.add_task("starting the model", total=1)
        yield lambda stage, fraction: bars.update(bar, description=stage, completed=fraction)


def log_stages() -> ProgressCallback:
    """Print one line per stage."""
    last = ""

    def progress(stage: str, fraction: float) -> None:
        nonlocal last
        if stage != last:
            last = stage
            print(f"dailytrain score: {stage}", file=sys.stderr, flush=True)  # noqa: T201 (a command's progress)

    return progress
