"""The node's log, as the sponsor reads it on standard error: `logging` through a rich console."""

from __future__ import annotations

import logging
from functools import cache
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.console import Console

log = logging.getLogger("trainer.node")
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
