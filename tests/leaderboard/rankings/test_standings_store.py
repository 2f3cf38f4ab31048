"""Stored standings: when they are recomputed, and that old computations never replace newer ones."""

from __future__ import annotations

import pytest
from django.db import transaction
from django.test import Client
from pytest_django import DjangoAssertNumQueries, DjangoCaptureOnCommitCallbacks

from leaderboard import recomputation, tasks
from leaderboard.models import Run, Season, Standing, StandingsTable, Track
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
        assert computed.comparison is not None
        printed = {estimates["entry"]: estimates for estimates in computed.comparison.to_dict()["entries"]}
        for row in rows:
            estimate = row.estimate_dict(table)
            assert estimate is not None
            own = printed[estimate["entry"]]
            assert {name: value for name, value in estimate.items() if name in own} == own
        full = "1e13" if axis == "flops" else repr(computed.full)
        name = f"entry-{table.baseline_id}"
        assert (
            table.command == f"dailytrain multiplier results.json --baseline {name} --axis {axis} --full {full} --json"
        )


def test_board_without_computed_standings_is_empty(client: Client) -> None:
    boards.create_board()

    page = client.get("/").content.decode()

    assert "The standings have not been computed yet." in page
    assert 'class="board' not in page
    assert (
        client.get("/api/v1/tracks/small/board?format=csv").status_code
        == client.get("/feeds/records.atom").status_code
        == 200
    )


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


@pytest.mark.parametrize("change", ["run", "trust", "track", "season"])
def test_change_enqueues_recomputation_on_commit(
    change: str, recomputed_track_ids: list[int], django_capture_on_commit_callbacks: DjangoCaptureOnCommitCallbacks
) -> None:
    track, entries = boards.create_board()
    run = entries["Better"].runs.earliest("pk")
    with django_capture_on_commit_callbacks(execute=True):
        if change == "run":
            dispute_first_run(track)
        elif change == "trust":
            trust.apply_trust_event(run, trust.TrustEvent.DISPUTE, actor="mara", message="A replay differs.")
        elif change == "track":
            track.save()
        else:
            Season.objects.get(pk=track.season_id).save()
        assert recomputed_track_ids == []

    assert recomputed_track_ids == [track.pk]


def test_rolled_back_change_enqueues_nothing(
    recomputed_track_ids: list[int], django_capture_on_commit_callbacks: DjangoCaptureOnCommitCallbacks
) -> None:
    track, _ = boards.create_board()
    with django_capture_on_commit_callbacks(execute=True), transaction.atomic():
        dispute_first_run(track)
        transaction.set_rollback(True)

    assert recomputed_track_ids == []


def test_task_of_deleted_track_does_nothing() -> None:
    tasks.recompute_standings(10**6)


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
    assert row is not None
    assert row.run_count == 2


def test_refreshed_standings_include_latest_change() -> None:
    track, entries = boards.create_board()
    recompute_standings(track)
    dispute_first_run(track)

    old, new = (
        load_standings(track).get_row(entries["Better"].pk),
        refresh_standings(track).get_row(entries["Better"].pk),
    )

    assert old is not None
    assert new is not None
    assert (old.run_count, new.run_count) == (3, 2)


def test_deleted_entry_deletes_its_standings_row() -> None:
    track, entries = boards.create_board()
    recompute_standings(track)
    entries["Level"].runs.all().delete()
    entries["Level"].delete()

    assert StandingsTable.objects.filter(track=track).count() == 2
    assert load_standings(track).rows.count() == 3
