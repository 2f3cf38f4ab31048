from __future__ import annotations

import io

import pytest
from rich.console import Console

from trainer.data import progress
from trainer.data.progress import Reporter


def shown(terminal: bool, wanted: bool = True) -> str:
    stream = io.StringIO()
    reporter = Reporter(wanted, Console(file=stream, force_terminal=terminal, width=100, color_system=None))
    with reporter.phase("Reading", total=4 << 20) as phase:
        for _ in range(4):
            phase.advance(1 << 20)
    assert phase.done == 4 << 20
    return stream.getvalue()


def test_a_log_gets_a_line_for_the_phase_and_then_one_now_and_then(monkeypatch: pytest.MonkeyPatch) -> None:
    assert shown(terminal=False) == "Reading ...\n"
    monkeypatch.setattr(progress, "PATIENCE", 0.0)
    assert shown(terminal=False).splitlines()[-1] == "Reading: 4 MiB so far ..."


def test_a_terminal_gets_a_bar() -> None:
    assert "4.0/4.0 MiB" in shown(terminal=True)


def test_silence_is_silence() -> None:
    assert shown(terminal=True, wanted=False) == ""
