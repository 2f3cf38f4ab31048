"""Stored standings: when they are recomputed, and that old computations never replace newer ones."""

from __future__ import annotations

import pytest
from django.db import transaction
from django.test import Client
from pytest_django import DjangoAssertNumQueries, DjangoCaptureOnCommitCallbacks

from leaderboard import recomputation, tasks
from leaderboard.models import Run, Season, Standing, Track
from leaderboard.rankings import standings_store, trust
from leaderboard.rankings.standings import TrackStandings, compute_standings
from leaderboard.rankings.standings_store import load_standings, recompute_standings, refresh_standings
from tests.support import boards
from trainer.scoring.multiplier import Axis

pytestmark = [pytest.mark.sql, pytest.mark.django_db, pytest.mark.stored_standings]


@pytest.fixture
def recomputed_track_ids(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Return the ids of the tracks that a recomputation was enqueued for."""
    ids: list[int] = []
    monkeypatch.setattr(recomputation, "send_task", lambda name, track_id: ids.append(track_id))
    return ids


def dispute_first_run(track: Track) -> None:
    run = Run.objects.filter(track=track, entry__title="Better").earliest("pk")
    trust.apply_trust_event(run, trust.TrustEvent.DISPUTE, actor="mara", message="Looks odd.")


def test_rows_equal_computed_standings() -> None:
    track, _ = boards.create_board()
    recompute_standings(track)

    for axis in ("flops", "seconds"):
        computed, table = compute_standings(track, axis), load_standings(track, axis)
        rows = list(table.rows.all())
        assert [(row.entry_id, row.run_ids) for row in rows] == [
            (row.entry, [run.run for run in row.runs]) for row in computed.rows
        ]
        printed = {estimates["entry"]: estimates for estimates in computed.comparison.to_dict()["entries"]}
        for row in rows:
            estimate = row.estimate_dict(table)
            own = printed[estimate["entry"]]
            assert {name: value for name, value in estimate.items() if name in own} == own
        full = "1e13" if axis == "flops" else f"{computed.full:.10g}"
        options = f"--baseline entry-{table.baseline_id} --axis {axis} --full {full} --json"
        assert table.command == f"dailytrain multiplier results.json {options}"


def test_board_without_computed_standings_is_empty(client: Client) -> None:
    boards.create_board()

    page = client.get("/").content.decode()

    assert "The standings have not been computed yet." in page
    assert 'class="board' not in page
    for address in ("/api/v1/tracks/small/board?format=csv", "/feeds/records.atom"):
        assert client.get(address).status_code == 200


def test_recomputation_of_current_standings_changes_nothing(django_assert_num_queries: DjangoAssertNumQueries) -> None:
    track, _ = boards.create_board()
    assert recompute_standings(track)
    before = list(Standing.objects.order_by("pk").values_list("pk", "table__computed_at"))

    with django_assert_num_queries(4):  # of each axis the table and the version
        assert not recompute_standings(track)

    assert list(Standing.objects.order_by("pk").values_list("pk", "table__computed_at")) == before


def test_standings_computed_from_older_runs_are_discarded(monkeypatch: pytest.MonkeyPatch) -> None:
    track, _ = boards.create_board()
    recompute_standings(track)
    calls: list[Axis] = []

    def compute_slowly(track: Track, axis: Axis = "flops") -> TrackStandings:
        old = compute_standings(track, axis)
        calls.append(axis)
        if len(calls) == 1:  # meanwhile a run changes and another worker replaces the rows
            dispute_first_run(track)
            monkeypatch.setattr(standings_store, "compute_standings", compute_standings)
            recompute_standings(track)
        return old

    boards.create_scored_run(Run.objects.filter(entry__title="Level")[0].entry, 1.01, seed=300)
    monkeypatch.setattr(standings_store, "compute_standings", compute_slowly)
    assert not standings_store.recompute_table(track, "flops")

    stored = {row.entry_id: row.run_count for row in load_standings(track).rows.all()}
    assert stored == {row.entry: len(row.runs) for row in compute_standings(track).rows}


@pytest.mark.parametrize("change", ["run", "track", "season"])
def test_change_enqueues_recomputation_on_commit(
    change: str, recomputed_track_ids: list[int], django_capture_on_commit_callbacks: DjangoCaptureOnCommitCallbacks
) -> None:
    track, _ = boards.create_board()
    with django_capture_on_commit_callbacks(execute=True):
        if change == "run":
            dispute_first_run(track)
        elif change == "track":
            track.save()
        else:
            Season.objects.get(pk=track.season_id).save()
        assert recomputed_track_ids == []

    assert recomputed_track_ids == [track.pk]
    with django_capture_on_commit_callbacks(execute=True), transaction.atomic():
        track.save()
        transaction.set_rollback(True)
    assert recomputed_track_ids == [track.pk], "it was rolled back"
    tasks.recompute_standings(10**6)  # of a track that was deleted


def test_periodic_task_recomputes_stale_standings(caplog: pytest.LogCaptureFixture) -> None:
    track, entries = boards.create_board()
    Track.objects.create(slug="odd", name="Odd", season=track.season, budget="a while", expected_seconds=1, position=-1)
    boards.create_scored_run(entries["Level"], seed=7)
    tasks.recompute_stale_standings()

    assert "The standings of odd cannot be computed." in caplog.text
    assert load_standings(track).row_count == 4
    dispute_first_run(track)
    tasks.recompute_stale_standings()
    row = load_standings(track).get_row(entries["Better"].pk)
    assert row.run_count == 2


def test_refreshed_standings_include_latest_change() -> None:
    track, entries = boards.create_board()
    recompute_standings(track)
    dispute_first_run(track)

    rows = [load(track).get_row(entries["Better"].pk) for load in (load_standings, refresh_standings)]

    assert [row.run_count for row in rows if row] == [3, 2]
