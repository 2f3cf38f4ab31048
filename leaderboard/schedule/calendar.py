"""The calendar: scheduled runs and hours of tracks, and the results of the last nights.

It reads the rows that schedule them (django-celery-beat, `Track.hours`).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta, tzinfo

from django.db.models import Prefetch
from django_celery_beat.models import PeriodicTask

from leaderboard.models import Month, Night, Run, Track
from leaderboard.schedule import due_times, monthly, nightly
from leaderboard.schedule.due_times import NIGHTLY, list_times
from leaderboard.schedule.planned_night import PlannedNight
from scheduler import estimates, matching, windows

MONTHLY = "leaderboard.tasks.monthly"
AHEAD = timedelta(days=35)
BEHIND = timedelta(days=14)
LAST_MONTHS = 6
TITLES = {"nightly": "Nightly train of main,", "monthly": "Monthly train,", "hours": "Hours of"}


@dataclass(frozen=True)
class CalendarEvent:
    """A scheduled run or hours of a track."""

    track: Track
    what: str
    """nightly, monthly or hours."""
    begins: datetime
    ends: datetime
    """End of a run by its track's expected duration."""

    @property
    def title(self) -> str:
        return f"{TITLES[self.what]} {self.track.name}"


@dataclass(frozen=True)
class NextNightly:
    """The next nightly run of a track, and its obstacles."""

    due: CalendarEvent
    planned: PlannedNight
    occupied: Run | None
    """An unfinished run of an earlier night; tonight's starts when it has ended."""
    broken: str
    """Why `main` could not be trained last time; empty if it could."""

    @property
    def wanted(self) -> str:
        """Required of a node, for example "with a GPU of 80 GB"."""
        return matching.describe_needs(self.planned.training)

    @property
    def fitting(self) -> int:
        """Online nodes that fit."""
        return self.planned.count_nodes()

    @property
    def state(self) -> str:
        """Return the expected outcome: stays (late), waits (for a node), baseline, or leaves (`main` is trained)."""
        if self.occupied:
            return "stays"
        if not self.fitting:
            return "waits"
        return "baseline" if self.broken else "leaves"


# --- the schedule ----------------------------------------------------------------------------------------------------


def list_upcoming(now: datetime) -> list[CalendarEvent]:
    """Return the events within `AHEAD`, soonest first. Four queries, however many tracks there are."""
    tracks = list(Track.objects.in_order().filter(season__active=True).prefetch_related("hours"))
    tasks = PeriodicTask.objects.filter(task__in=(NIGHTLY, MONTHLY), enabled=True)
    schedules = {task.task: task for task in tasks.select_related("crontab", "interval")}
    due = [
        *list_scheduled_runs("nightly", schedules.get(NIGHTLY), [track for track in tracks if track.nightly], now),
        *list_scheduled_runs("monthly", schedules.get(MONTHLY), [track for track in tracks if track.monthly], now),
        *(event for track in tracks for event in list_track_hours(track, now)),
    ]
    return sorted(due, key=lambda event: (event.begins, event.track.position, event.track.slug))


def list_scheduled_runs(
    kind: str, task: PeriodicTask | None, tracks: Sequence[Track], now: datetime
) -> Iterator[CalendarEvent]:
    """Yield the runs of each track: one a local day or one a month (UTC), without periods that have one already."""
    if task is None or not tracks:
        return
    periods, zone = Month.objects if kind == "monthly" else Night.objects, due_times.get_zone(task)
    started = set(periods.filter(date__gte=get_period(kind, now, zone)).values_list("track", "date"))
    for begins in list_times(task, now, now + AHEAD):
        for track in tracks:
            if (track.pk, get_period(kind, begins, zone)) not in started:
                started.add((track.pk, get_period(kind, begins, zone)))
                lasts = track.expected_seconds * (monthly.BUDGET_FACTOR if kind == "monthly" else 1)
                yield CalendarEvent(track, kind, begins, begins + timedelta(seconds=lasts))


def get_period(what: str, at: datetime, zone: tzinfo = UTC) -> date:
    """Return the period of a run: the day in its schedule's zone, or the month's first day (UTC)."""
    return at.astimezone(UTC).date().replace(day=1) if what == "monthly" else at.astimezone(zone).date()


def list_track_hours(track: Track, now: datetime) -> Iterator[CalendarEvent]:
    """Yield the hours of a track, this week's and the next."""
    for begins, ends in windows.list_intervals(list(track.hours.all()), track.hours_zone, now):
        if ends > now:
            yield CalendarEvent(track, "hours", begins, ends)


def get_next_nightly(now: datetime) -> datetime | None:
    """Return when the next nightly runs are due; None if the schedule is disabled. One query."""
    task = PeriodicTask.objects.filter(task=NIGHTLY, enabled=True).select_related("crontab", "interval").first()
    return next(list_times(task, now, now + AHEAD), None) if task else None


# --- past and next runs ----------------------------------------------------------------------------------------------


def list_recent_nights(now: datetime) -> list[Night]:
    nights = Night.objects.filter(date__gte=(now - BEHIND).date(), created_at__lte=now)
    with_runs = nights.select_related("track", "run__entry", "run__track", "run__season")
    return list(with_runs.order_by("-date", "track__position", "track__slug"))


def list_recent_months() -> list[Month]:
    runs_of = Prefetch("runs", Run.objects.with_entry().order_by("bits_per_byte", "pk"))
    return list(Month.objects.select_related("track").prefetch_related(runs_of)[:LAST_MONTHS])


def list_next_nightlies(due: Sequence[CalendarEvent], nights: Sequence[Night], now: datetime) -> list[NextNightly]:
    """Return the next nightly run of each track. `due` and `nights`: of `list_upcoming` and `list_recent_nights`."""
    first: dict[int, CalendarEvent] = {}
    for event in due:
        if event.what == "nightly":
            first.setdefault(event.track.pk, event)
    slots = estimates.QueueEstimates(now).slots if first else []
    return [
        build_next_nightly(event, PlannedNight(event.track, now, event.begins, slots), nights)
        for event in first.values()
    ]


def build_next_nightly(due: CalendarEvent, planned: PlannedNight, nights: Sequence[Night]) -> NextNightly:
    last = next((night for night in nights if night.track_id == due.track.pk), None)
    return NextNightly(due, planned, nightly.get_unfinished_run(due.track), last.problem if last else "")
