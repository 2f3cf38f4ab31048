"""Jobs of a track with hours carry the stretch in which they may begin, and are moved on to the next."""

from __future__ import annotations

from datetime import UTC, datetime, time, timedelta

import pytest
from django.core.exceptions import ValidationError

from leaderboard import runs, track_hours
from leaderboard.models import Entry, Run, Track, TrackHours
from leaderboard.submissions import intake
from scheduler.models import Job
from tests.leaderboard.conftest import lease

WEDNESDAY = datetime(2026, 3, 4, 12, 0, tzinfo=UTC)
HOUR = timedelta(hours=1)


def open_on(track: Track, weekday: int, start: int, end: int) -> None:
    track.hours.create(weekday=weekday, start=time(start), end=time(end))


def test_a_track_without_hours_is_open_at_any_time(track: Track) -> None:
    assert track_hours.get_next_interval(track, WEDNESDAY) == (None, None)


def test_the_stretch_is_the_present_one_else_the_next(track: Track) -> None:
    open_on(track, 2, 22, 6)
    night = (WEDNESDAY.replace(hour=22), WEDNESDAY.replace(hour=22) + 8 * HOUR)
    assert track_hours.get_next_interval(track, WEDNESDAY) == night
    assert track_hours.get_next_interval(track, night[0]) == night
    assert track_hours.get_next_interval(track, night[1] - HOUR) == night
    assert track_hours.get_next_interval(track, night[1]) == tuple(end + timedelta(days=7) for end in night)


def test_they_are_told_on_the_wall_clock_of_the_tracks_zone(track: Track) -> None:
    track.hours_zone = "Europe/Berlin"
    open_on(track, 2, 14, 18)
    assert track_hours.get_next_interval(track, WEDNESDAY)[0] == WEDNESDAY.replace(hour=13)
    summer = datetime(2026, 7, 1, 9, 0, tzinfo=UTC)
    assert track_hours.get_next_interval(track, summer)[0] == summer.replace(hour=12)


def test_an_entrys_job_has_them_and_the_nightly_goes_by_its_own_timetable(track: Track, idea: Entry) -> None:
    open_on(track, 2, 22, 6)
    (run,) = intake.approve_entry(idea, idea.sha, None)
    assert run.job
    assert run.job.not_before is not None
    assert run.job.not_after is not None
    assert run.job.not_after - run.job.not_before == 8 * HOUR
    for purpose in (Run.Purpose.NIGHTLY, Run.Purpose.MONTHLY):
        free = runs.make_run(idea, track, purpose=purpose)
        runs.queue_run(free)
        assert free.job
        assert (free.job.not_before, free.job.not_after) == (None, None)
        assert track_hours.update_jobs() == 0


def test_jobs_are_moved_on_when_their_hours_are_over(track: Track, run: Run) -> None:
    open_on(track, 2, 10, 14)
    assert run.job
    assert track_hours.update_jobs(WEDNESDAY) == 1
    assert track_hours.update_jobs(WEDNESDAY + HOUR) == 0
    assert track_hours.update_jobs(WEDNESDAY + 3 * HOUR) == 1
    run.job.refresh_from_db()
    assert run.job.not_before == WEDNESDAY.replace(hour=10) + timedelta(days=7)


def test_changed_hours_hold_for_jobs_that_wait_and_that_run(track: Track, run: Run, able: object) -> None:
    assert run.job
    open_on(track, 2, 10, 14)
    track_hours.update_jobs(WEDNESDAY)
    lease(run.job, able)  # type: ignore[arg-type]
    TrackHours.objects.all().delete()
    assert track_hours.update_jobs(WEDNESDAY) == 1
    run.job.refresh_from_db()
    assert (run.job.state, run.job.not_before, run.job.not_after) == (Job.State.LEASED, None, None)


def test_in_a_zone_that_nobody_knows_nothing_begins(track: Track) -> None:
    track.hours_zone = "Mars/Olympus"
    open_on(track, 2, 0, 0)
    begin, end = track_hours.get_next_interval(track, WEDNESDAY)
    assert begin == end
    assert begin is not None
    assert begin > WEDNESDAY
    with pytest.raises(ValidationError, match="no time zone"):
        track.full_clean()


def test_the_competition_has_no_hours(track: Track) -> None:
    with pytest.raises(ValidationError, match="community and playground"):
        TrackHours(track=track, weekday=0, start=time(1), end=time(2)).full_clean()
    track.kind = Track.Kind.COMMUNITY
    TrackHours(track=track, weekday=0, start=time(1), end=time(2)).full_clean()
