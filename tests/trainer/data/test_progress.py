from __future__ import annotations

from trainer.data.progress import ProgressConsole, show_phase


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
