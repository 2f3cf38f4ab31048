"""The frontier: records over time; and what an entry gains at each scale."""

from __future__ import annotations

import re
from datetime import timedelta

import pytest
from django.test import Client
from django.utils import timezone

from leaderboard.board.scales import draw_scales, load_scales
from leaderboard.charts.frontier import build_frontier, load_records
from leaderboard.models import Entry, Run, Track
from leaderboard.rankings.eligible_runs import RECORD_CONFIRMED
from leaderboard.rankings.standings_store import load_standings
from tests.support import boards, scene

pytestmark = pytest.mark.django_db


def crowned(track: Track, title: str, multiplier: float, days: int, trust: str = "replicated") -> Entry:
    """Add an entry that broke the record so many days ago."""
    entry = scene.entry(track, title, "smear", sha=f"{9000 + days:040x}", confirmation=RECORD_CONFIRMED)
    for seed in range(3):
        boards.judged(
            entry, multiplier, seed=seed, purpose=Run.Purpose.CONFIRMATION, trust=trust,
            finished_at=timezone.now() - timedelta(days=days, hours=seed),
        )  # fmt: skip
    return entry


def test_records_stand_in_the_order_in_which_they_were_broken() -> None:
    track, _ = boards.board()
    crowned(track, "Second", 1.3, 3, "record")
    crowned(track, "First", 1.15, 9)

    found = load_records(load_standings(track))

    assert [record.row.entry.title for record in found] == ["First", "Second"]
    assert [record.is_standing for record in found] == [False, True]
    assert found[1].over == pytest.approx(1.3 / 1.15, rel=0.05)
    assert (timezone.now() - found[0].at).days == 9, "when the last of its confirmation runs was judged"


def test_the_line_climbs_from_the_baseline_to_now() -> None:
    track, _ = boards.board()
    crowned(track, "First", 1.15, 9)
    crowned(track, "Second", 1.3, 3, "record")

    table = load_standings(track)
    drawn = build_frontier(table, load_records(table), timezone.now())

    assert drawn is not None
    assert re.fullmatch(r"M0 [\d.]+(H[\d.]+V[\d.]+){2}H97", drawn.line)
    first, second = drawn.stations
    assert first.x < second.x < 97
    assert first.y > second.y, "higher up is better"
    assert second.high < second.y < second.low
    assert second.name == "Second"
    assert "2 records since" in drawn.summary


def test_a_board_without_a_record_says_who_is_ahead_or_that_the_baseline_stands(client: Client) -> None:
    track, entries = boards.board()
    page = client.get("/").content.decode()

    assert load_standings(track).leader == entries["Better"]
    assert "Ahead, not a record yet" in page

    entries["Better"].runs.all().delete()
    assert "The baseline stands." in client.get("/").content.decode()


def test_the_record_is_the_first_number_of_the_page(client: Client) -> None:
    track, _ = boards.board()
    entry = crowned(track, "First", 1.4, 9, "record")

    page = client.get("/").content.decode()

    assert re.search(r'record-number is-better">\s*<strong>1\.[34]\d\d</strong>', page)
    assert f'<a href="{entry.get_absolute_url()}">First</a>' in page
    assert 'class="metro"' in page


def test_an_entry_is_read_off_the_ladder_at_every_scale() -> None:
    track, entries = boards.board()
    for part, multiplier in ((0.25, 1.5), (2.0, 1.05)):
        for seed in (1, 2, 3):
            boards.judged(entries["Better"], multiplier, part=part, seed=seed)

    found = load_scales(load_standings(track), entries["Better"].pk)
    picture = draw_scales(found)

    assert [at.name for at in found] == ["1/4", "1", "2"]
    assert [at.estimate.cm for at in found if at.estimate] == pytest.approx([1.5, 1.2, 1.05], rel=0.06)
    assert picture is not None
    assert [mark.y for mark in picture.marks] == sorted(mark.y for mark in picture.marks), "it falls"
    assert all(mark.high < mark.y < mark.low for mark in picture.marks)


def test_a_confirmed_entry_keeps_its_other_scales_and_its_own_number_is_the_boards() -> None:
    track, _ = boards.board()
    entry = crowned(track, "First", 1.3, 9, "record")
    boards.judged(entry, 1.4, part=0.5, seed=8)
    table = load_standings(track)
    row = table.get_row(entry.pk)

    found = load_scales(table, entry.pk)

    assert [at.name for at in found] == ["1/2", "1"]
    assert row is not None
    assert row.estimate is not None
    assert found[1].estimate is not None
    assert found[1].estimate.cm == pytest.approx(row.estimate.cm)


def test_the_baseline_has_no_gain_over_itself() -> None:
    track, entries = boards.board()

    assert draw_scales(load_scales(load_standings(track), entries["baseline"].pk)) is None
