"""What a volunteer sees while a sitting goes on."""

from __future__ import annotations

import io
import time

import pytest
from rich.console import Console

from tests.support.rephrasings import GOOD, SOURCE
from trainer.node import status_display
from trainer.node.status_display import RephraseStats, StatusDisplay, build_status_panel, format_status_line


def tally() -> RephraseStats:
    made = RephraseStats()
    made.packets, made.outputs, made.accepted, made.tokens, made.writing, made.waiting = 7, 28, 21, 5000, 4, 12
    made.refused.update({"copied": 5, "meaning": 2})
    made.sample = ("easy", SOURCE, GOOD["easy"])
    return made


def test_the_picture_holds_the_numbers_the_reasons_and_a_sample() -> None:
    console = Console(file=io.StringIO(), width=110)
    console.print(build_status_panel("genesis with words-1", tally()))
    said = console.file.getvalue()  # type: ignore[attr-defined]
    for words in ("genesis with words-1", "28 handed in, 21 taken by the site (75.0%)", "4 being written, 12 waiting"):
        assert words in said
    for words in ("Refused 5", "It is nearly identical to its source.", "When on board", "Easy", "I was on a ship."):
        assert words in said


def test_markup_in_a_text_is_text() -> None:
    made = tally()
    made.sample = ("easy", "[red]source[/red]", "[/nothing]")
    console = Console(file=io.StringIO(), width=110)
    console.print(build_status_panel("[bold]", made))
    assert "[/nothing]" in console.file.getvalue()  # type: ignore[attr-defined]


def test_elsewhere_there_is_a_line_now_and_then(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(status_display, "LINE_SECONDS", 0.01)
    monkeypatch.setattr(status_display, "console", lambda: Console(file=io.StringIO()))
    lines: list[str] = []
    with StatusDisplay("title", tally(), lines.append):
        while not lines:
            time.sleep(0.01)
    assert lines[0].startswith("7 packets handed in, 28 texts, 75% taken, ")


def test_before_anything_is_handed_in_there_is_no_share() -> None:
    assert format_status_line(RephraseStats()) == "0 packets handed in, 0 texts, 0 tokens/s."
    assert "(-)" in _printed(RephraseStats())


def _printed(made: RephraseStats) -> str:
    console = Console(file=io.StringIO(), width=110)
    console.print(build_status_panel("title", made))
    return console.file.getvalue()  # type: ignore[attr-defined, no-any-return]
