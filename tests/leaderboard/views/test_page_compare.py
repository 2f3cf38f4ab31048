"""The page that compares runs."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest
from django.test import Client

from leaderboard import comparison
from leaderboard.models import Entry, Run, Track
from leaderboard.rankings.standings_store import load_standings
from tests.leaderboard.views.test_page_board import extract_text
from tests.support import boards, scene

pytestmark = pytest.mark.django_db


@pytest.fixture
def board_entries() -> tuple[Track, dict[str, Entry]]:
    return boards.create_board()


def list_full_runs(entries: dict[str, Entry], *titles: str) -> list[Run]:
    return [entries[title].runs.filter(budget="1e13flops").order_by("pk")[0] for title in titles]


def build_compare_url(runs: list[Run]) -> str:
    return f"/compare/?runs={','.join(str(run.pk) for run in runs)}"


def test_compare_page_shows_ranking_with_compute_needed(
    client: Client, board_entries: tuple[Track, dict[str, Entry]]
) -> None:
    runs = list_full_runs(board_entries[1], "Level", "Worse", "Better", "baseline")

    page = extract_text(client.get(build_compare_url(runs)).content)

    assert re.search(r"Better is ahead of Level \(which needs \d+(\.\d)? % more compute to get as far\), main", page)
    assert "Level is ahead of Worse" in page
    assert "cannot be distinguished from main, 3 March" in page


def test_compared_pairs_match_the_board(board_entries: tuple[Track, dict[str, Entry]]) -> None:
    track, entries = board_entries
    table = load_standings(track)
    pairs = comparison.compare_pairs(list_full_runs(entries, "Better", "Level", "Worse", "baseline"))
    assert pairs
    index_by_entry = {entry: i for i, (entry, _) in enumerate(pairs.entries)}
    for entry in (entries[title].pk for title in ("Better", "Level", "Worse")):
        row = table.get_row(entry)
        assert row
        tied = set(row.ties) & index_by_entry.keys()
        cells = {
            other: pairs.rows[index_by_entry[entry]][index_by_entry[other]]
            for other in index_by_entry
            if other != entry
        }
        assert {other for other, cell in cells.items() if cell and cell.verdict == "tied"} == tied
        baseline_cell = cells[entries["baseline"].pk]
        assert baseline_cell
        assert baseline_cell.ratio
        assert (baseline_cell.ratio.cm, baseline_cell.ratio.low) == (row.multiplier, row.multiplier_low)


@pytest.mark.parametrize("query", ["", "?runs=", "?runs=abc,-1", "?runs=999999", "?runs=99999999999999999999999"])
def test_compare_page_with_any_query_opens(client: Client, query: str) -> None:
    response = client.get(f"/compare/{query}", follow=True)

    assert response.status_code == 200
    assert "Compare runs" in extract_text(response.content)


@pytest.mark.parametrize(
    "config",
    [{"dataset": "x"}, {"parameters": {"total": "abc"}}, {"parameters": 3}, {"a": [{"name": []}]}],
)
def test_pages_of_run_with_malformed_record_open(client: Client, config: dict[str, Any]) -> None:
    track = scene.create_track()
    runs = [scene.create_run(scene.create_entry(track, name, sha=name * 40), config=config) for name in "ab"]
    assert client.get(runs[0].get_absolute_url()).status_code == 200
    assert client.get(build_compare_url(runs)).status_code == 200


def test_compare_page_does_not_compare_runs_of_other_tracks(
    client: Client, board_entries: tuple[Track, dict[str, Entry]]
) -> None:
    other_track = Track.objects.create(
        slug="other", name="Other", season=board_entries[0].season, budget="60s", expected_seconds=60.0
    )
    other_run = scene.create_run(scene.create_entry(other_track, "Far"), state=Run.State.FINISHED, bits_per_byte=1.0)
    runs = [*list_full_runs(board_entries[1], "Better", "Level"), other_run]

    page = extract_text(client.get(build_compare_url(runs)).content)

    assert "Better is ahead of Level" in page
    assert "Runs of other tracks have other budgets" in page
    assert "Far is" not in page


def test_compare_curves_with_infinite_value_are_plain_json(client: Client) -> None:
    run = scene.create_night_board()["train"]
    last = run.points.filter(series="train").order_by("step").last()
    assert last is not None
    run.points.filter(pk=last.pk).update(gradient_norm=float("inf"))

    response = client.get(f"/compare/curves.json?runs={run.pk}")

    curves = json.loads(response.content, parse_constant=pytest.fail)
    train = curves["curves"][str(run.pk)]["train"]
    assert response.status_code == 200
    assert train["step"][-1] == last.step
    assert train["gradient_norm"][-1] is None
    assert len(train["gradient_norm"]) == len(train["step"]) == len(train["smooth"]) > 100
    assert (curves["live"], curves["wait"]) == ([run.pk], 1.5)
