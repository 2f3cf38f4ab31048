from __future__ import annotations

import io
import re

import pytest

from trainer.data import progress
from trainer.data.progress import ProgressConsole, show_phase


def capture_phase(terminal: bool, quiet: bool = False) -> str:
    stream = io.StringIO()
    console = ProgressConsole(file=stream, force_terminal=terminal, width=100, color_system=None, quiet=quiet)
    with show_phase(console, "Reading", total=4 << 20) as phase:
        for _ in range(4):
            phase.advance(1 << 20)
    assert phase.done == 4 << 20
    return stream.getvalue()


def test_log_gets_title_and_a_line_per_interval(monkeypatch: pytest.MonkeyPatch) -> None:
    assert capture_phase(terminal=False) == "Reading ...\n"
    assert "4.0/4.0 MiB" in capture_phase(terminal=True)
    assert capture_phase(terminal=True, quiet=True) == capture_phase(terminal=False, quiet=True) == ""
    monkeypatch.setattr(progress, "LOG_INTERVAL", 0.0)
    line = capture_phase(terminal=False).splitlines()[-1]
    assert re.fullmatch(r"Reading: 4 of 4 MiB, [\d,.]+ MiB/s, 0:00:00 left", line)


def test_report_with_quiet_console_gets_phase_and_bytes_at_begin_and_end() -> None:
    reports: list[tuple[str, int, int | None]] = []
    console = ProgressConsole(lambda *report: reports.append(report), quiet=True)
    with show_phase(console, "Reading", total=4 << 20, done=1 << 20) as phase:
        phase.advance(3 << 20)
    assert reports[0] == ("Reading", 1 << 20, 4 << 20)
    assert reports[-1] == ("Reading", 4 << 20, 4 << 20)
    with show_phase(console, "Counting"):
        pass
    assert reports[-1] == ("Counting", 0, None)
