"""The status of a rephrasing session, on a terminal and in a log."""

from __future__ import annotations

import io
import time

import pytest
from rich.console import Console

from tests.support.rephrasings import GOOD, SOURCE
from trainer.node import console
from trainer.node.console import StatusDisplay, build_status_panel
from trainer.node.rephrase_session import RephraseStats, build_status_rows, format_status_line
from trainer.rephrase.checks import REASONS


def build_stats() -> RephraseStats:
    stats = RephraseStats()
    stats.packets, stats.outputs, stats.accepted, stats.tokens, stats.writing, stats.waiting = 7, 28, 21, 5000, 4, 12
    stats.refused.update({"copied": 5, "meaning": 2})
    stats.sample = ("easy", SOURCE, GOOD["easy"])
    return stats


def print_panel(title: str, stats: RephraseStats) -> str:
    file = io.StringIO()
    Console(file=file, width=110).print(build_status_panel(title, build_status_rows(stats), "subtitle"))
    return file.getvalue()


def test_panel_shows_counters_reasons_and_a_sample() -> None:
    stats = build_stats()
    stats.sample = ("easy", SOURCE, "[/nothing] " + GOOD["easy"])
    text = print_panel("genesis with [bold]", stats)
    assert "genesis with [bold]" in text, "markup is shown literally"
    assert "28 submitted, 21 accepted by the site (75.0%)" in text
    assert "4 being written, 12 waiting" in text
    for words in ("Refused 5", REASONS["copied"], "When on board", "Easy", "[/nothing] I was on a ship."):
        assert words in text
    assert "(-)" in print_panel("before the first submission", RephraseStats())


def test_display_without_a_terminal_logs_lines(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(console, "LINE_SECONDS", 0.01)
    lines: list[str] = []
    with StatusDisplay("title", "", lambda: format_status_line(build_stats()), list, lines.append, can_draw=False):
        while not lines:
            time.sleep(0.01)
    assert lines[0].startswith("7 packets submitted, 28 texts, 75% accepted, ")
    assert format_status_line(RephraseStats()) == "0 packets submitted, 0 texts, 0 tokens/s."
