"""Live status of a job: a panel on a terminal, one log line per minute elsewhere. The rows of a rephrasing session."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable
from typing import TYPE_CHECKING, Self

from trainer.node.console import get_console
from trainer.rephrase.checks import REASONS

if TYPE_CHECKING:
    from rich.console import RenderableType

UPDATES_PER_SECOND = 2
LINE_SECONDS = 60.0
SAMPLE_LENGTH = 240  # characters of a sample text that are shown
MAX_REASONS = 4


class RephraseStats:
    """Counters of a session. Changed and read under its lock."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.started_at = time.monotonic()
        self.packets = 0
        self.outputs = 0
        self.accepted = 0  # by the site
        self.tokens = 0
        self.writing = 0  # prompts that the back end is completing
        self.waiting = 0  # tasks not yet sent to the back end
        self.refused: Counter[str] = Counter()  # by the site, per reason
        self.sample = ("", "", "")  # style, source and output of the latest text that passed our own checks
        self.trouble = ""  # why the session waits for the back end; "" if it does not

    @property
    def seconds(self) -> float:
        return time.monotonic() - self.started_at

    @property
    def tokens_per_second(self) -> float:
        return self.tokens / max(self.seconds, 1e-9)


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


def format_status_line(stats: RephraseStats) -> str:
    with stats.lock:
        share = f", {stats.accepted / stats.outputs:.0%} accepted" if stats.outputs else ""
        return (
            f"{stats.packets} packets submitted, {stats.outputs} texts{share},"
            f" {stats.tokens_per_second:.0f} tokens/s. {stats.trouble}"
        ).rstrip()


def build_status_rows(stats: RephraseStats) -> list[tuple[str, str]]:
    """Return name and value of each row of the panel."""
    with stats.lock:
        share = f"{stats.accepted / stats.outputs:.1%}" if stats.outputs else "-"
        backend = f"{stats.tokens_per_second:,.0f} tokens/s, {stats.writing} being written, {stats.waiting} waiting"
        style, source, output = stats.sample
        rows = [
            ("Packets", f"{stats.packets} submitted"),
            ("Texts", f"{stats.outputs} submitted, {stats.accepted} accepted by the site ({share})"),
            ("Back end", backend),
            ("Time", time.strftime("%H:%M:%S", time.gmtime(stats.seconds))),
        ]
        rows += [("Waiting", stats.trouble)] if stats.trouble else []
        reasons = stats.refused.most_common(MAX_REASONS)
    rows += [(f"Refused {count}", REASONS.get(reason, reason)) for reason, count in reasons]
    return rows + ([("Source", shorten_text(source)), (style.capitalize(), shorten_text(output))] if style else [])


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


def shorten_text(text: str) -> str:
    plain = " ".join(text.split())
    return plain if len(plain) <= SAMPLE_LENGTH else f"{plain[:SAMPLE_LENGTH]}…"
