"""Hours of tracks: when jobs of a track may start. Nightly and monthly runs ignore them.

A job has the current or next interval in `Job.not_before` and `not_after`, which the queue checks. `update_jobs` moves
jobs on to the next interval. A job that has started continues after the end.
"""

from __future__ import annotations

from datetime import datetime

from django.utils import timezone

from leaderboard.models import Run, Track
from scheduler import windows
from scheduler.models import Job

SCHEDULED_PURPOSES = (Run.Purpose.NIGHTLY, Run.Purpose.MONTHLY)
KINDS = ("train", "notebook")
"""Other kinds, such as scoring, start at any time."""

Interval = tuple[datetime | None, datetime | None]
ANY_TIME: Interval = (None, None)


def get_next_interval(track: Track, now: datetime) -> Interval:
    """Return the current or next hours of the track."""
    hours = list(track.hours.all())
    if not hours:
        return ANY_TIME
    known = windows.list_intervals(hours, track.hours_zone, now)
    later = now + windows.WEEK  # an unknown time zone: no job starts
    return next(((begin, end) for begin, end in known if end > now), (later, later))


def get_job_columns(run: Run) -> dict[str, datetime | None]:
    begin, end = ANY_TIME if run.purpose in SCHEDULED_PURPOSES else get_next_interval(run.track, timezone.now())
    return {"not_before": begin, "not_after": end}


def update_jobs(now: datetime | None = None) -> int:
    """Update the hours of all jobs; return how many changed."""
    now = now or timezone.now()
    unfinished = Job.objects.filter(kind__in=KINDS, state__in=[Job.State.HELD, Job.State.QUEUED, Job.State.LEASED])
    jobs = unfinished.exclude(run__purpose__in=SCHEDULED_PURPOSES)
    changed = 0
    for track in Track.objects.prefetch_related("hours"):
        begin, end = get_next_interval(track, now)
        others = jobs.filter(track=track.slug).exclude(not_before=begin, not_after=end)
        changed += others.update(not_before=begin, not_after=end)
    return changed
