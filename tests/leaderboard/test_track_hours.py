"""Hours of tracks: the interval in which their jobs may start, and its updates."""

from __future__ import annotations

from datetime import UTC, datetime, time, timedelta

import pytest
from django.core.exceptions import ValidationError

from leaderboard import runs, track_hours
from leaderboard.models import Entry, Run, Track, TrackHours
from leaderboard.submissions import intake
from scheduler.models import Job
from tests.support.node_jobs import lease_job

WEDNESDAY = datetime(2026, 3, 4, 12, 0, tzinfo=UTC)
HOUR = timedelta(hours=1)


def add_hours(track: Track, weekday: int, start: int, end: int) -> None:
    track.hours.create(weekday=weekday, start=time(start), end=time(end))


def test_next_interval_is_the_current_or_following_one(track: Track) -> None:
    add_hours(track, 2, 22, 6)
    night = (WEDNESDAY.replace(hour=22), WEDNESDAY.replace(hour=22) + 8 * HOUR)
    assert track_hours.get_next_interval(track, WEDNESDAY) == night
    assert track_hours.get_next_interval(track, night[0]) == night
    assert track_hours.get_next_interval(track, night[1] - HOUR) == night
    assert track_hours.get_next_interval(track, night[1]) == tuple(end + timedelta(days=7) for end in night)
    track.hours_zone = "Europe/Berlin"
    assert track_hours.get_next_interval(track, WEDNESDAY)[0] == WEDNESDAY.replace(hour=21)
    summer = datetime(2026, 7, 1, 9, 0, tzinfo=UTC)
    assert track_hours.get_next_interval(track, summer)[0] == summer.replace(hour=20)


def test_track_hours_apply_to_entries_but_not_to_nightlies(track: Track, proposed_entry: Entry) -> None:
    add_hours(track, 2, 22, 6)
    (run,) = intake.approve_entry(proposed_entry, proposed_entry.sha, None)
    assert run.job.not_before is not None
    assert run.job.not_after is not None
    assert run.job.not_after - run.job.not_before == 8 * HOUR
    for purpose in (Run.Purpose.NIGHTLY, Run.Purpose.MONTHLY):
        unrestricted_run = runs.make_run(proposed_entry, track, purpose=purpose)
        runs.queue_run(unrestricted_run)
        assert (unrestricted_run.job.not_before, unrestricted_run.job.not_after) == (None, None)
        assert track_hours.update_jobs() == 0


def test_changed_hours_apply_to_leased_jobs(track: Track, run: Run, capable_node: object) -> None:
    add_hours(track, 2, 10, 14)
    track_hours.update_jobs(WEDNESDAY)
    lease_job(run.job, capable_node)  # type: ignore[arg-type]
    TrackHours.objects.all().delete()
    assert track_hours.update_jobs(WEDNESDAY) == 1
    run.job.refresh_from_db()
    assert (run.job.state, run.job.not_before, run.job.not_after) == (Job.State.LEASED, None, None)


def test_track_hours_in_unknown_time_zone_start_no_job(track: Track) -> None:
    track.hours_zone = "Mars/Olympus"
    add_hours(track, 2, 0, 0)
    begin, end = track_hours.get_next_interval(track, WEDNESDAY)
    assert begin == end
    assert begin is not None
    assert begin > WEDNESDAY
    with pytest.raises(ValidationError, match="no time zone"):
        track.full_clean()
