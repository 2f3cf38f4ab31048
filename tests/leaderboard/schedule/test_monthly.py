"""Monthly runs: the month's best entries with seven times the budget, once a month."""

from __future__ import annotations

from datetime import timedelta
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
def track() -> Track:
    """A track with a full ladder and monthly runs for two entries."""
    monthly_track, baseline = boards.create_ladder_track(monthly=2, nightly=False)
    boards.fill_ladder(baseline)
    return monthly_track


def create_scored_entry(track: Track, title: str, multiplier: float, days_ago: float = 3, **fields: Any) -> Entry:
    bundle = storage.store_bytes(title.encode())
    entry = scene.create_entry(track, title, "smear", sha=f"{Entry.objects.count():040x}", bundle=bundle, **fields)
    boards.create_scored_run(entry, multiplier, seed=100, finished_at=NOW - timedelta(days=days_ago))
    return entry


def start_this_month() -> Month:
    (month,) = monthly.start_monthly_runs(NOW)
    return month


def test_monthly_runs_are_for_best_entries_and_baseline(track: Track) -> None:
    second = create_scored_entry(track, "Second", 1.2)
    worst = create_scored_entry(track, "Worst", 0.8)
    best = create_scored_entry(track, "Best", 1.5, kind=Entry.Kind.MAIN)
    create_scored_entry(track, "main of another day", 1.3, kind=Entry.Kind.MAIN)
    create_scored_entry(track, "Disputed", 1.6).runs.update(trust=Run.Trust.DISPUTED)
    create_scored_entry(track, "Withdrawn", 1.6, state=Entry.State.WITHDRAWN)
    month = start_this_month()
    assert monthly.start_monthly_runs(NOW) == monthly.start_monthly_runs(NOW.replace(day=28)) == []
    assert track.season.baseline
    assert [run.entry for run in month.runs.order_by("pk")] == [best, second, track.season.baseline]
    assert month.sentence.startswith("With 7 times the budget: Best, Second.")
    assert not worst.runs.filter(purpose=Run.Purpose.MONTHLY).exists()
    for run in month.runs.select_related("job", "track"):
        assert (run.budget, run.part, run.state) == ("7e13flops", 7, Run.State.QUEUED)
        assert (run.job.priority, run.job.preemptible) == (Job.Priority.LADDER, True)
        assert run.job.expected_seconds == 7 * track.expected_seconds
    assert Event.objects.about(track).last().sentence.startswith("Monthly runs of ")  # type: ignore[union-attr]


def test_monthly_runs_do_not_change_standings(track: Track) -> None:
    best_entry = create_scored_entry(track, "Best", 1.5)
    row_before = compute_standings(track).get_row(best_entry.pk)
    month = start_this_month()
    month.runs.update(state=Run.State.FINISHED, trust=Run.Trust.SCORED, bits_per_byte=1.0, train_flops=7e13)
    table = compute_standings(track)
    assert table.get_row(best_entry.pk) == row_before
    reasons = {reason for run, reason in table.left_out if run.run in set(month.runs.values_list("pk", flat=True))}
    assert reasons == {"It ran on the monthly train, with more than the track's budget."}


def test_month_counts_from_the_first_score_not_from_earlier_failures(track: Track) -> None:
    entry = create_scored_entry(track, "Late", 1.5)
    long_ago = NOW - timedelta(days=60)
    scene.create_run(entry, state=Run.State.FAILED, finished_at=long_ago, cause="infrastructure", seed=7)
    assert monthly.choose_best_entries(track, NOW - timedelta(days=31)) == [entry]
