"""A run's progress on standard error: a bar in a terminal, a line every few seconds in a log."""

from __future__ import annotations

import time
from typing import Self

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

LINE_SECONDS = 10  # between two lines of a log


class TrainingProgress:
    """Shows the used fraction of the budget and the last loss."""

    def __init__(self, console: Console) -> None:
        self.console = console
        self.bar = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            TextColumn("{task.percentage:>3.0f} %"),
            TimeRemainingColumn(),
            console=console,
            transient=True,
            disable=not console.is_terminal,
        )
        self.last_printed = time.monotonic()

    def __enter__(self) -> Self:
        self.bar.start()
        self.task = self.bar.add_task("training", total=1.0)
        return self

    def __exit__(self, *_: object) -> None:
        self.bar.stop()

    def update(self, step: int, fraction: float, loss: float, tokens_per_second: float) -> None:
        """Show the current step, loss and speed."""
        text = f"step {step}, loss {loss:.3f}, {tokens_per_second:,.0f} tokens/s"
        self.bar.update(self.task, completed=fraction, description=text)
        if not self.console.is_terminal and time.monotonic() - self.last_printed >= LINE_SECONDS:
            self.print_line(f"{fraction:4.0%}  {text}")

    def print_line(self, text: str) -> None:
        """Print a permanent line."""
        self.last_printed = time.monotonic()
        self.console.print(text, markup=False, highlight=False, soft_wrap=True)
