"""The frontier chart: records over time, and an entry's gain at each scale."""

from __future__ import annotations

import re
from datetime import timedelta

import pytest
from django.utils import timezone

from leaderboard.board.scales import draw_scales, load_scales
from leaderboard.charts.frontier import build_frontier, load_records
from leaderboard.models import Entry, Run, Track
from leaderboard.rankings.standings_store import load_standings
from tests.support import boards, scene

pytestmark = pytest.mark.django_db


def create_record_entry(track: Track, title: str, multiplier: float, days: int, trust: str = "replicated") -> Entry:
    """Create an entry that became the record `days` ago."""
    entry = scene.create_entry(track, title, "smear", sha=f"{9000 + days:040x}")
    scene.confirm_record(entry)
    for seed in range(3):
        boards.create_scored_run(
            entry, multiplier, seed=seed, purpose=Run.Purpose.CONFIRMATION, trust=trust,
            finished_at=timezone.now() - timedelta(days=days, hours=seed),
        )  # fmt: skip
    return entry


def test_frontier_rises_with_the_records_in_order_of_time() -> None:
    track, _ = boards.create_board()
    create_record_entry(track, "Second", 1.3, 3, "record")
    create_record_entry(track, "First", 1.15, 9)
    table = load_standings(track)

    records = load_records(table)
    frontier = build_frontier(table, records, timezone.now())

    assert [record.row.entry.title for record in records] == ["First", "Second"]
    assert [record.is_standing for record in records] == [False, True]
    assert records[1].over == pytest.approx(1.3 / 1.15, rel=0.05)
    assert (timezone.now() - records[0].at).days == 9, "a record's time is that of its last confirmation run"
    assert re.fullmatch(r"M0 [\d.]+(H[\d.]+V[\d.]+){2}H97", frontier.line)
    first, second = frontier.stations
    assert first.x < second.x < 97
    assert second.high < second.y < second.low < first.y, "a better record must be higher in the chart"
    assert "2 records since" in frontier.summary


def test_entry_has_an_estimate_at_each_scale() -> None:
    track, entries = boards.create_board()
    for part, multiplier in ((0.25, 1.5), (2.0, 1.05)):
        for seed in (1, 2, 3):
            boards.create_scored_run(entries["Better"], multiplier, part=part, seed=seed)

    scales = load_scales(load_standings(track), entries["Better"].pk)
    chart = draw_scales(scales)

    assert [scale.name for scale in scales] == ["1/4", "1", "2"]
    assert [scale.estimate.cm for scale in scales if scale.estimate] == pytest.approx([1.5, 1.2, 1.05], rel=0.06)
    assert [mark.y for mark in chart.marks] == sorted(mark.y for mark in chart.marks), (
        "the marks must fall with the scale"
    )
    assert all(mark.high < mark.y < mark.low for mark in chart.marks)
    assert draw_scales(load_scales(load_standings(track), entries["baseline"].pk)) is None
