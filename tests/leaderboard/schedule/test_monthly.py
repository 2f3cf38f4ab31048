"""The month's best entries leave together, with seven times the budget, once a month."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from django.utils import timezone

from leaderboard.models import Entry, Month, Run, Track
from leaderboard.rankings.standings import compute_standings
from leaderboard.schedule import monthly
from scheduler import storage
from scheduler.models import Event, Job
from tests.support import boards, scene

pytestmark = pytest.mark.django_db
NOW = timezone.now()


@pytest.fixture
def track(tmp_path: Any, settings: Any) -> Track:
    """A board with a full ladder and a monthly train for two."""
    settings.STORAGES = {
        **settings.STORAGES,
        "default": {
            "BACKEND": "django.core.files.storage.FileSystemStorage",
            "OPTIONS": {"location": str(tmp_path / "storage")},
        },
    }
    made, baseline = boards.small(monthly=2, nightly=False)
    boards.climb(baseline)
    return made


def arrived(track: Track, title: str, multiplier: float, days_ago: float = 3, **fields: Any) -> Entry:
    bundle = storage.store_bytes(title.encode())
    made = scene.entry(track, title, "smear", sha=f"{Entry.objects.count():040x}", bundle=bundle, **fields)
    boards.judged(made, multiplier, seed=100, finished_at=NOW - timedelta(days=days_ago))
    return made


def this_month() -> Month:
    (month,) = monthly.start_monthly_runs(NOW)
    return month


def test_the_best_of_the_month_leave_with_the_baseline_beside_them(track: Track) -> None:
    second, worst, best = (
        arrived(track, "Second", 1.2), arrived(track, "Worst", 0.8), arrived(track, "Best", 1.5)
    )  # fmt: skip
    month = this_month()
    assert track.season.baseline
    assert [run.entry for run in month.runs.order_by("pk")] == [best, second, track.season.baseline]
    assert month.sentence.startswith("With 7 times the budget: Best, Second.")
    assert not worst.runs.filter(purpose=Run.Purpose.MONTHLY).exists()
    for run in month.runs.select_related("job", "track"):
        assert (run.budget, run.part, run.state) == ("7e13flops", 7, Run.State.QUEUED)
        assert run.job
        assert (run.job.priority, run.job.preemptible) == (Job.Priority.MAINTAINER, True)
        assert run.job.expected_seconds == 7 * track.expected_seconds
    assert Event.objects.about(track).last().sentence.startswith("Monthly runs of ")  # type: ignore[union-attr]


def test_once_a_month_whoever_asks(track: Track) -> None:
    arrived(track, "Best", 1.5)
    this_month()
    assert monthly.start_monthly_runs(NOW) == []
    assert monthly.start_monthly_runs(NOW.replace(day=28)) == []
    assert Month.objects.count() == 1


def test_it_stands_aside_while_the_last_one_runs(track: Track) -> None:
    arrived(track, "Best", 1.5)
    first = this_month()
    arrived(track, "Better", 1.6, days_ago=-1)
    (second,) = monthly.start_monthly_runs(NOW + timedelta(days=32))
    assert second.sentence == "The last month still has 2 runs in progress: no new runs start."
    assert not second.runs.exists()
    first.runs.update(state=Run.State.FINISHED)
    (third,) = monthly.start_monthly_runs(NOW + timedelta(days=64))
    assert [run.entry.title for run in third.runs.all()] == ["Better"], "the baseline has run at this length"


def test_who_arrived_before_the_last_one_does_not_leave_again(track: Track) -> None:
    arrived(track, "Old", 1.5, days_ago=40)
    month = this_month()
    assert month.sentence == "No new entry was scored since the last month: no runs start."
    assert not month.runs.exists()


def test_of_mains_commits_only_the_best_goes_along(track: Track) -> None:
    arrived(track, "main, Monday", 1.3, kind=Entry.Kind.MAIN)
    arrived(track, "main, Tuesday", 1.4, kind=Entry.Kind.MAIN)
    arrived(track, "Level", 1.0)
    assert {run.entry.title for run in this_month().runs.all()} >= {"main, Tuesday", "Level"}
    assert not Run.objects.filter(purpose=Run.Purpose.MONTHLY, entry__title="main, Monday").exists()


def test_nobody_goes_along_whose_result_is_disputed_or_withdrawn(track: Track) -> None:
    arrived(track, "Disputed", 1.5).runs.update(trust=Run.Trust.DISPUTED)
    arrived(track, "Withdrawn", 1.4, state=Entry.State.WITHDRAWN)
    assert not this_month().runs.exists()


def test_where_no_node_fits_it_says_so(track: Track) -> None:
    arrived(track, "Best", 1.5)
    assert this_month().sentence.endswith("none is online. It starts as soon as one is.")


def test_its_runs_do_not_move_the_board(track: Track) -> None:
    best = arrived(track, "Best", 1.5)
    before = compute_standings(track).get_row(best.pk)
    month = this_month()
    month.runs.update(state=Run.State.FINISHED, trust=Run.Trust.SCORED, bits_per_byte=1.0, train_flops=7e13)
    table = compute_standings(track)
    assert table.get_row(best.pk) == before
    reasons = {reason for run, reason in table.left_out if run.run in set(month.runs.values_list("pk", flat=True))}
    assert reasons == {"It ran on the monthly train, with more than the track's budget."}


def test_only_tracks_of_the_present_season_that_want_one(track: Track) -> None:
    Track.objects.update(monthly=0)
    assert monthly.start_monthly_runs(NOW) == []
    Track.objects.update(monthly=1)
    track.season.active = False
    track.season.save()
    assert monthly.start_monthly_runs(datetime(2026, 1, 1, tzinfo=UTC)) == []
