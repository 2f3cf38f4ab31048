"""When a periodic task is due, by its row (django-celery-beat), and to which local night a moment belongs."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, date, datetime, time, timedelta, tzinfo
from itertools import islice
from typing import Any

from django_celery_beat.models import PeriodicTask

NIGHTLY = "leaderboard.tasks.nightly"
MAX_TIMES = 2000
"""Times of one schedule that are read: a schedule may be due every minute."""
LAST_NIGHT = timedelta(hours=25)
"""Age of the oldest due time that is still tonight's: until the next one, also on the day when clocks go back."""
MAX_CLOCK_SKEW = timedelta(minutes=1)
"""Largest difference between the clocks of beat and of the worker that starts the night."""


def get_zone(task: PeriodicTask | None) -> tzinfo:
    """Return the time zone of a task's crontab; UTC for an interval."""
    return UTC if task is None or task.crontab is None else task.crontab.schedule.tz


def get_night_date(now: datetime) -> date:
    """Return the local date of tonight: of the last due time, else of now. One query.

    A local date has one night, also when the clocks change, and when beat was down until the next morning.
    """
    task = PeriodicTask.objects.filter(task=NIGHTLY).select_related("crontab").first()
    zone = get_zone(task)
    if task is not None and task.crontab is not None:
        recent = list(list_crontab_times(task.crontab.schedule, now - LAST_NIGHT, now + MAX_CLOCK_SKEW))
        now = recent[-1] if recent else now
    return now.astimezone(zone).date()


def list_times(task: PeriodicTask, since: datetime, until: datetime) -> Iterator[datetime]:
    """Yield the due times of a periodic task with a crontab or an interval, at most `MAX_TIMES`."""
    due = (
        list_crontab_times(task.crontab.schedule, since, until)
        if task.crontab
        else list_interval_times(task, since, until)
    )
    return islice(due, MAX_TIMES)


def list_crontab_times(crontab: Any, since: datetime, until: datetime) -> Iterator[datetime]:
    """Yield the times of a `TzAwareCrontab` in [since, until), by the clock of its time zone."""
    day, last = since.astimezone(crontab.tz).date(), until.astimezone(crontab.tz).date()
    while day <= last:
        in_month = day.day in crontab.day_of_month and day.month in crontab.month_of_year
        if in_month and day.isoweekday() % 7 in crontab.day_of_week:
            walls = [time(hour, minute) for hour in sorted(crontab.hour) for minute in sorted(crontab.minute)]
            moments = (datetime.combine(day, wall, crontab.tz).astimezone(UTC) for wall in walls)
            yield from (at for at in moments if since <= at < until)
        day += timedelta(days=1)


def list_interval_times(task: PeriodicTask, since: datetime, until: datetime) -> Iterator[datetime]:
    if task.interval is None:
        return
    every = task.interval.schedule.run_every
    at = task.last_run_at or since
    at += every * max(0, -((at - since) // every))
    while at < until:
        if at >= since:
            yield at
        at += every
