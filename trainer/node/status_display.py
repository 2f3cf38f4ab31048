"""What a volunteer sees of a sitting: a picture that stays in its place on a terminal, a line a minute elsewhere."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable
from types import TracebackType
from typing import TYPE_CHECKING, Self

from trainer.node.console import console
from trainer.rephrase.checks import REASONS

if TYPE_CHECKING:
    from rich.console import RenderableType

PICTURES_PER_SECOND = 2
LINE_SECONDS = 60.0
SAMPLE = 240
"""Letters of a text that are shown."""
REASONS_SHOWN = 4


class RephraseStats:
    """The numbers of a sitting. Changed and read under its lock."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.began = time.monotonic()
        self.packets = 0
        self.outputs = 0
        self.accepted = 0
        """By the site."""
        self.tokens = 0
        self.writing = 0
        """Prompts that the back end has just now."""
        self.waiting = 0
        """Pieces in hand that nobody has asked it yet."""
        self.refused: Counter[str] = Counter()
        """By the site, by reason."""
        self.sample = ("", "", "")
        """Style, source and output of the last that our own checks took."""
        self.trouble = ""
        """What is waited for: the site or the back end."""

    @property
    def seconds(self) -> float:
        return time.monotonic() - self.began

    @property
    def tokens_per_second(self) -> float:
        return self.tokens / max(self.seconds, 1e-9)


class StatusDisplay:
    def __init__(self, title: str, tally: RephraseStats, say: Callable[[str], None], alone: bool = True) -> None:
        """`alone`: nothing else draws on this terminal; with several lanes, each has its lines."""
        self._draws = alone and console().is_terminal
        self._title = title
        self._tally = tally
        self._say = say
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name="board", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._ended.set()
        self._thread.join(5)

    def _run(self) -> None:
        if not self._draws:
            while not self._ended.wait(LINE_SECONDS):
                self._say(self.line())
            return
        from rich.live import Live

        with Live(console=console(), refresh_per_second=PICTURES_PER_SECOND, transient=True) as live:
            while not self._ended.wait(1 / PICTURES_PER_SECOND):
                live.update(self.picture())

    def line(self) -> str:
        return format_status_line(self._tally)

    def picture(self) -> RenderableType:
        return build_status_panel(self._title, self._tally)


def format_status_line(tally: RephraseStats) -> str:
    with tally.lock:
        share = f", {tally.accepted / tally.outputs:.0%} taken" if tally.outputs else ""
        return (
            f"{tally.packets} packets handed in, {tally.outputs} texts{share},"
            f" {tally.tokens_per_second:.0f} tokens/s. {tally.trouble}"
        ).rstrip()


def build_status_panel(title: str, tally: RephraseStats) -> RenderableType:
    from rich.panel import Panel
    from rich.table import Table
    from rich.text import Text

    table = Table.grid(padding=(0, 2))
    table.add_column(style="bold")
    table.add_column()
    with tally.lock:
        share = f"{tally.accepted / tally.outputs:.1%}" if tally.outputs else "-"
        reasons = tally.refused.most_common(REASONS_SHOWN)
        style, source, output = tally.sample
        rows = [
            ("Packets", f"{tally.packets} handed in"),
            ("Texts", f"{tally.outputs} handed in, {tally.accepted} taken by the site ({share})"),
            (
                "Back end",
                f"{tally.tokens_per_second:,.0f} tokens/s, {tally.writing} being written, {tally.waiting} waiting",
            ),
            ("Time", time.strftime("%H:%M:%S", time.gmtime(tally.seconds))),
        ]
        rows += [("Waiting", tally.trouble)] if tally.trouble else []
    rows += [(f"Refused {count}", REASONS.get(reason, reason)) for reason, count in reasons]
    rows += [("Source", shorten_text(source)), (style.capitalize(), shorten_text(output))] if style else []
    for name, value in rows:
        table.add_row(name, Text(value))
    return Panel(table, title=Text(title), subtitle="Ctrl-C hands back what is not finished")


def shorten_text(text: str) -> str:
    plain = " ".join(text.split())
    return plain if len(plain) <= SAMPLE else f"{plain[:SAMPLE]}…"
