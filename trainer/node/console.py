"""What the sponsor sees on standard error: the node's log, and on a terminal a panel with the status of a job."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from functools import cache
from typing import TYPE_CHECKING, Self

if TYPE_CHECKING:
    from rich.console import Console, RenderableType

log = logging.getLogger("trainer.node")
UPDATES_PER_SECOND = 2  # of a panel
LINE_SECONDS = 60.0  # between two lines where there is no terminal
STYLES = {logging.WARNING: "yellow", logging.ERROR: "bold red"}


@cache
def get_console() -> Console:
    """Return the one console that the log and the status display share."""
    from rich.console import Console

    return Console(stderr=True, soft_wrap=True, highlight=False, markup=False, emoji=False)


class ConsoleHandler(logging.Handler):
    """Prints one line per record. rich's own RichHandler would wrap it at the terminal's width."""

    def emit(self, record: logging.LogRecord) -> None:
        try:
            get_console().print(self.format(record), style=STYLES.get(record.levelno))
        except Exception:  # a full disk under the log ends no job
            self.handleError(record)


def configure_logging() -> None:
    """Print the node's log with the time of day; called by the command line."""
    if log.handlers:
        return
    handler = ConsoleHandler()
    handler.setFormatter(logging.Formatter("%(asctime)s %(message)s", "%H:%M:%S"))
    log.addHandler(handler)
    log.setLevel(logging.INFO)


class StatusDisplay:
    """Shows a status on a terminal while its `with` block runs; elsewhere logs it once a minute."""

    def __init__(
        self,
        title: str,
        subtitle: str,
        format_line: Callable[[], str],
        build_rows: Callable[[], list[tuple[str, str]]],
        log: Callable[[str], None],
        can_draw: bool,
    ) -> None:
        """`build_rows`: returns name and value of each row; `can_draw`: whether no other slot uses the terminal."""
        self._title, self._subtitle = title, subtitle
        self._format_line, self._build_rows, self._log = format_line, build_rows, log
        self._can_draw = can_draw and get_console().is_terminal
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name="status display", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join(5)

    def _run(self) -> None:
        if not self._can_draw:
            while not self._ended.wait(LINE_SECONDS):
                self._log(self._format_line())
            return
        from rich.live import Live

        with Live(console=get_console(), refresh_per_second=UPDATES_PER_SECOND, transient=True) as live:
            while not self._ended.wait(1 / UPDATES_PER_SECOND):
                live.update(build_status_panel(self._title, self._build_rows(), self._subtitle))


def build_status_panel(title: str, rows: list[tuple[str, str]], subtitle: str) -> RenderableType:
    from rich.panel import Panel
    from rich.table import Table
    from rich.text import Text

    table = Table.grid(padding=(0, 2))
    table.add_column(style="bold")
    table.add_column()
    for name, value in rows:
        table.add_row(name, Text(value))
    return Panel(table, title=Text(title), subtitle=subtitle)
