"""The page that compares runs."""

from __future__ import annotations

import gzip
import json
import re
from random import Random
from typing import Any

import pytest
from django.test import Client

from leaderboard import comparison
from leaderboard.models import Entry, Run, Score, Track
from leaderboard.rankings import paired_comparison
from leaderboard.rankings.standings_store import load_standings
from scheduler import storage
from scheduler.models import JobFile
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
    track, entries = board_entries
    fields = {"season": track.season, "budget": "60s", "expected_seconds": 60.0}
    other_track = Track.objects.create(slug="other", name="Other", **fields)
    other_run = scene.create_run(scene.create_entry(other_track, "Far"), state=Run.State.FINISHED, bits_per_byte=1.0)
    runs = [*list_full_runs(entries, "Level", "Worse", "Better", "baseline"), other_run]

    page = extract_text(client.get(build_compare_url(runs)).content)

    assert "Runs of other tracks have other budgets" in page
    assert "Far is" not in page

    assert re.search(r"Better is ahead of Level \(which needs \d+(\.\d)? % more compute to get as far\), main", page)
    assert "Level is ahead of Worse" in page
    assert "cannot be distinguished from main, 3 March" in page


def test_compared_pairs_match_the_board(board_entries: tuple[Track, dict[str, Entry]]) -> None:
    track, entries = board_entries
    table = load_standings(track)
    runs = list_full_runs(entries, "Better", "Level", "Worse", "baseline")
    pairs = comparison.compare_pairs(runs)
    index_by_entry = {entry: i for i, (entry, _) in enumerate(pairs.entries)}
    for entry in (entries[title].pk for title in ("Better", "Level", "Worse")):
        row = table.get_row(entry)
        tied = set(row.ties) & index_by_entry.keys()
        cells = {
            other: pairs.rows[index_by_entry[entry]][index_by_entry[other]]
            for other in index_by_entry
            if other != entry
        }
        assert {other for other, cell in cells.items() if cell and cell.verdict == "tied"} == tied
        baseline_cell = cells[entries["baseline"].pk]
        assert (baseline_cell.ratio.cm, baseline_cell.ratio.low) == (row.multiplier, row.multiplier_low)


@pytest.mark.parametrize("query", ["", "?runs=", "?runs=abc,-1", "?runs=999999", "?runs=99999999999999999999999"])
def test_compare_page_with_any_query_opens(client: Client, query: str) -> None:
    response = client.get(f"/compare/{query}", follow=True)

    assert response.status_code == 200
    assert "Compare runs" in extract_text(response.content)


@pytest.mark.parametrize(
    "config", [{"dataset": "x"}, {"parameters": {"total": "abc"}}, {"parameters": 3}, {"a": [{"name": []}]}]
)
def test_pages_of_run_with_malformed_record_open(client: Client, config: dict[str, Any]) -> None:
    track = scene.create_track()
    runs = [scene.create_run(scene.create_entry(track, name, sha=name * 40), config=config) for name in "ab"]
    assert client.get(runs[0].get_absolute_url()).status_code == 200
    assert client.get(build_compare_url(runs)).status_code == 200


def create_scored_run(entry: Entry, seed: int, content: bytes | None) -> Run:
    run = scene.create_run(entry, seed=seed, state=Run.State.FINISHED, bits_per_byte=2.0)
    run.score_job = scene.create_job(run)
    run.save()
    Score.objects.create(run=run, name="bits_per_byte", value=2.0, stderr=0.01)
    if content is not None:
        JobFile.objects.create(job=run.score_job, path=paired_comparison.ITEMS, blob=storage.store_bytes(content))
    return run


def build_items(worse: float, seed: int, documents: int = 60) -> bytes:
    """Return documents of many sizes, each with `worse` times its bits and some noise of the run."""
    rng, items = Random(seed), []
    for i in range(documents):
        size = Random(i).randint(200, 4000)
        bits = size * 2 * (1 + Random(i).gauss(0, 0.2)) * worse * (1 + rng.gauss(0, 0.002))
        items.append({"task": "bits_per_byte", "item": i, "bits": bits, "bytes": size})
    return gzip.compress("\n".join(json.dumps(item) for item in items).encode())


@pytest.fixture
def entry(site: Any) -> Entry:
    return scene.create_entry(scene.create_track(), "main")


def test_paired_comparison_of_same_documents_finds_small_difference(client: Client, entry: Entry) -> None:
    runs = [
        create_scored_run(entry, 1, build_items(1.0, 1)),
        create_scored_run(entry, 2, build_items(1.01, 2)),
        create_scored_run(entry, 3, build_items(1.0, 3)),
    ]

    worse, same = paired_comparison.compare_with_first(runs)

    (difference,) = worse.significant
    assert difference.low > 0
    assert same.significant == []
    address = f"/compare/?runs={','.join(str(run.pk) for run in runs)}"
    assert "item by item" in extract_text(client.get(address).content)
    assert "1 of 1 differ by more than chance" in extract_text(client.get(f"{address}&paired=1").content)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, "left no answers to single items"),
        (b"no archive", "does not hold the items"),
        (gzip.compress(b'{"task": "bits_per_byte", "item": 0}', mtime=0), "does not hold the items"),
        (gzip.compress(b'{"task": "other", "item": 0, "acc": 1}', mtime=0), "no item in common"),
        (gzip.compress(b" " * (8 * paired_comparison.MAX_BYTES + 1), mtime=0), "unpacks to more"),
    ],
)
def test_paired_comparison_of_invalid_items_gives_problem(entry: Entry, content: bytes | None, message: str) -> None:
    first, second = create_scored_run(entry, 1, build_items(1.0, 1)), create_scored_run(entry, 2, content)

    (comparison,) = paired_comparison.compare_with_first([first, second])

    assert message in comparison.problem
    assert comparison.differences == []
