"""When may the jobs of a track start? In its hours, where it has any; the nightly and the monthly train go by no hours.

A job carries the stretch in which it may begin (`Job.not_before`, `not_after`): the present one, else the next. The
queue looks at no more than that, so both ends hold to the second; `keep` moves jobs on to the next stretch, and a late
`keep` only makes them wait longer. What has begun goes on after the end; if it is interrupted, it waits for more hours.
"""

from __future__ import annotations

from datetime import datetime

from django.db.models import QuerySet
from django.utils import timezone

from leaderboard.models import Run, Track
from scheduler import windows
from scheduler.models import Job

SCHEDULED_PURPOSES = (Run.Purpose.NIGHTLY, Run.Purpose.MONTHLY)
"""Runs whose own schedule says when they leave."""
KINDS = ("train", "notebook")
"""Jobs that are a track's own work; scoring and checking it waits for nothing."""

Interval = tuple[datetime | None, datetime | None]
ANY_TIME: Interval = (None, None)


def get_next_interval(track: Track, now: datetime) -> Interval:
    """Return the hours of the track that are not over, the soonest: from (perhaps in the past), and until."""
    lent = list(track.hours.all())
    if not lent:
        return ANY_TIME
    known = windows.list_intervals(lent, track.hours_zone, now)
    later = now + windows.WEEK  # where nobody knows the time zone, nothing begins
    return next(((begin, end) for begin, end in known if end > now), (later, later))


def get_job_columns(run: Run) -> dict[str, datetime | None]:
    """Return the columns of a run's job."""
    begin, end = ANY_TIME if run.purpose in SCHEDULED_PURPOSES else get_next_interval(run.track, timezone.now())
    return {"not_before": begin, "not_after": end}


def update_jobs(now: datetime | None = None) -> int:
    """Bring the jobs up to date with the clock and with their tracks' hours; return how many had others before."""
    now = now or timezone.now()
    return sum(
        update_track_jobs(track, get_next_interval(track, now)) for track in Track.objects.prefetch_related("hours")
    )


def update_track_jobs(track: Track, to: Interval) -> int:
    begin, end = to
    others = list_open_jobs(track).exclude(not_before=begin, not_after=end)
    return others.update(not_before=begin, not_after=end)


def list_open_jobs(track: Track) -> QuerySet[Job]:
    """Return the track's jobs that may yet be taken by a node, for the first time or again."""
    alive = [Job.State.HELD, Job.State.QUEUED, Job.State.LEASED]
    jobs = Job.objects.filter(track=track.slug, kind__in=KINDS, state__in=alive)
    return jobs.exclude(run__purpose__in=SCHEDULED_PURPOSES)
