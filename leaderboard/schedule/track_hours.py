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

BY_THE_TIMETABLE = (Run.Purpose.NIGHTLY, Run.Purpose.MONTHLY)
"""Runs whose own schedule says when they leave."""
KINDS = ("train", "notebook")
"""Jobs that are a track's own work; scoring and checking it waits for nothing."""

Stretch = tuple[datetime | None, datetime | None]
ANY_TIME: Stretch = (None, None)


def stretch(track: Track, now: datetime) -> Stretch:
    """Return the hours of the track that are not over, the soonest: from (perhaps in the past), and until."""
    lent = list(track.hours.all())
    if not lent:
        return ANY_TIME
    known = windows.list_intervals(lent, track.hours_zone, now)
    later = now + windows.WEEK  # where nobody knows the time zone, nothing begins
    return next(((begin, end) for begin, end in known if end > now), (later, later))


def of(run: Run) -> dict[str, datetime | None]:
    """Return the columns of a run's job."""
    begin, end = ANY_TIME if run.purpose in BY_THE_TIMETABLE else stretch(run.track, timezone.now())
    return {"not_before": begin, "not_after": end}


def keep(now: datetime | None = None) -> int:
    """Bring the jobs up to date with the clock and with their tracks' hours; return how many had others before."""
    now = now or timezone.now()
    return sum(move(track, stretch(track, now)) for track in Track.objects.prefetch_related("hours"))


def move(track: Track, to: Stretch) -> int:
    begin, end = to
    others = under_way(track).exclude(not_before=begin, not_after=end)
    return others.update(not_before=begin, not_after=end)


def under_way(track: Track) -> QuerySet[Job]:
    """Return the track's jobs that may yet be taken by a node, for the first time or again."""
    alive = [Job.State.HELD, Job.State.QUEUED, Job.State.LEASED]
    jobs = Job.objects.filter(track=track.slug, kind__in=KINDS, state__in=alive)
    return jobs.exclude(run__purpose__in=BY_THE_TIMETABLE)
