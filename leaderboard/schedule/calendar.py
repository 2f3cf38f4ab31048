"""The calendar: what is due when, by the schedule that Celery beat keeps, and what the last nights did.

Only trains and hours are shown, by the rows that a maintainer edits in the admin (django-celery-beat, `Track.hours`),
so the calendar and what happens cannot differ. Nothing here starts anything.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime, time, timedelta
from typing import Any

from django.db.models import Prefetch
from django_celery_beat.models import PeriodicTask

from leaderboard import runs
from leaderboard.models import Entry, Month, Night, Run, Track
from leaderboard.schedule import monthly, nightly
from scheduler import estimates, job_groups, matching, windows
from scheduler.models import Blob, Job

NIGHTLY, MONTHLY = "leaderboard.tasks.nightly", "leaderboard.tasks.monthly"
AHEAD = timedelta(days=35)
"""How far the page and the feed look."""
BEHIND = timedelta(days=14)
MAX_TIMES = 2000
"""Times of one schedule that are looked at: somebody may have the nightly asked for every minute."""
LAST_MONTHS = 6
TITLES = {"nightly": "Nightly train of main,", "monthly": "Monthly train,", "hours": "Hours of"}


@dataclass(frozen=True)
class CalendarEvent:
    """A train that is to leave, or hours that are to begin."""

    track: Track
    what: str
    """nightly, monthly or hours."""
    begins: datetime
    ends: datetime
    """For a train about: by what its track expects."""

    @property
    def title(self) -> str:
        return f"{TITLES[self.what]} {self.track.name}"


@dataclass(frozen=True)
class NextNightly:
    """The next departure of a nightly track, and what stands in its way."""

    due: CalendarEvent
    wanted: str
    """What a node must have: "with a GPU of 80 GB"."""
    fitting: int
    """Nodes that are online and have it."""
    occupied: Run | None
    """A run of an earlier night that still holds the track: nothing departs while it does."""
    broken: str
    """Why `main` could not be trained last time; empty where it could."""

    @property
    def state(self) -> str:
        """Return in one word what comes of it if nothing changes: stays, waits, baseline or leaves."""
        if self.occupied:
            return "stays"
        if not self.fitting:
            return "waits"
        return "baseline" if self.broken else "leaves"


# --- the schedule ----------------------------------------------------------------------------------------------------


def list_upcoming(now: datetime) -> list[CalendarEvent]:
    """Return what is due within `AHEAD`, soonest first. Four queries, however many tracks there are."""
    tracks = list(Track.objects.in_order().filter(season__active=True).prefetch_related("hours"))
    tasks = PeriodicTask.objects.filter(task__in=(NIGHTLY, MONTHLY), enabled=True)
    schedules = {task.task: task for task in tasks.select_related("crontab", "interval")}
    due = [
        *list_scheduled_runs("nightly", schedules.get(NIGHTLY), [track for track in tracks if track.nightly], now),
        *list_scheduled_runs("monthly", schedules.get(MONTHLY), [track for track in tracks if track.monthly], now),
        *(found for track in tracks for found in list_track_hours(track, now)),
    ]
    return sorted(due, key=lambda one: (one.begins, one.track.position, one.track.slug))


def list_scheduled_runs(
    what: str, task: PeriodicTask | None, tracks: Sequence[Track], now: datetime
) -> Iterator[CalendarEvent]:
    """Yield the departures: of each track one a day, or one a month (UTC), and none where that has been already."""
    if task is None or not tracks:
        return
    gone = find_started(what, now)
    for begins in list_times(task, now, now + AHEAD):
        for track in tracks:
            if (track.pk, get_period(what, begins)) not in gone:
                gone.add((track.pk, get_period(what, begins)))
                lasts = track.expected_seconds * (monthly.BUDGET_FACTOR if what == "monthly" else 1)
                yield CalendarEvent(track, what, begins, begins + timedelta(seconds=lasts))


def get_period(what: str, at: datetime) -> date:
    """Return what there is one train of: the day, or the month's first day."""
    day = at.astimezone(UTC).date()
    return day.replace(day=1) if what == "monthly" else day


def find_started(what: str, now: datetime) -> set[tuple[int, date]]:
    diary = Month.objects if what == "monthly" else Night.objects
    return set(diary.filter(date__gte=get_period(what, now)).values_list("track", "date"))


def list_times(task: PeriodicTask, since: datetime, until: datetime) -> Iterator[datetime]:
    """Yield when a periodic task is due. By a crontab or an interval; it foretells no other kind of schedule."""
    due = (
        list_crontab_times(task.crontab.schedule, since, until)
        if task.crontab
        else list_interval_times(task, since, until)
    )
    for number, at in enumerate(due):
        if number == MAX_TIMES:
            return
        yield at


def list_crontab_times(crontab: Any, since: datetime, until: datetime) -> Iterator[datetime]:
    """Yield the moments of a `TzAwareCrontab` in [since, until), on the wall clock of its own zone."""
    day, last = since.astimezone(crontab.tz).date(), until.astimezone(crontab.tz).date()
    while day <= last:
        if matches_day(crontab, day):
            walls = [time(hour, minute) for hour in sorted(crontab.hour) for minute in sorted(crontab.minute)]
            moments = (datetime.combine(day, wall, crontab.tz).astimezone(UTC) for wall in walls)
            yield from (at for at in moments if since <= at < until)
        day += timedelta(days=1)


def matches_day(crontab: Any, day: date) -> bool:
    in_month = day.day in crontab.day_of_month and day.month in crontab.month_of_year
    return in_month and day.isoweekday() % 7 in crontab.day_of_week


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


def list_track_hours(track: Track, now: datetime) -> Iterator[CalendarEvent]:
    """Yield the stretches in which jobs of the track may start, this week's and the next."""
    for begins, ends in windows.list_intervals(list(track.hours.all()), track.hours_zone, now):
        if ends > now:
            yield CalendarEvent(track, "hours", begins, ends)


def get_next_nightly(now: datetime) -> datetime | None:
    """Return when the nightly train is due, as set in the admin; None when it is switched off. One query."""
    task = PeriodicTask.objects.filter(task=NIGHTLY, enabled=True).select_related("crontab", "interval").first()
    return next(list_times(task, now, now + AHEAD), None) if task else None


# --- what was, and what stands in the way ----------------------------------------------------------------------------


def list_recent_nights(now: datetime) -> list[Night]:
    """Return the last nights, latest first, with their runs."""
    nights = Night.objects.filter(date__gte=(now - BEHIND).date(), date__lte=now.astimezone(UTC).date())
    with_runs = nights.select_related("track", "run__entry", "run__track", "run__season")
    return list(with_runs.order_by("-date", "track__position", "track__slug"))


def list_recent_months() -> list[Month]:
    """Return the last monthly trains, latest first, with their runs."""
    runs_of = Prefetch("runs", Run.objects.with_entry().order_by("bits_per_byte", "pk"))
    return list(Month.objects.select_related("track").prefetch_related(runs_of)[:LAST_MONTHS])


def list_next_nightlies(due: Sequence[CalendarEvent], nights: Sequence[Night], now: datetime) -> list[NextNightly]:
    """Return the next departure of each nightly track, from what `upcoming` and `diary` have found."""
    first: dict[int, CalendarEvent] = {}
    for one in due:
        if one.what == "nightly":
            first.setdefault(one.track.pk, one)
    slots = estimates.QueueEstimates(now).slots if first else []
    return [build_next_nightly(one, slots, nights) for one in first.values()]


def build_next_nightly(
    due: CalendarEvent, slots: Sequence[estimates.SlotSchedule], nights: Sequence[Night]
) -> NextNightly:
    line = job_groups.build_group_from_job(build_nightly_job(due.track))
    fitting = {slot.node_slot.node for slot in slots if matching.find_obstacle(line, slot.node_slot) is None}
    last = next((night for night in nights if night.track_id == due.track.pk), None)
    held = nightly.get_unfinished_run(due.track)
    return NextNightly(due, matching.describe_needs(line), len(fitting), held, last.problem if last else "")


def build_nightly_job(track: Track) -> Job:
    """Return the job that tonight's train will be, as far as a node's choice goes; it is never saved."""
    entry = Entry(kind=Entry.Kind.MAIN, track=track)
    run = Run(entry=entry, track=track, budget=track.budget, purpose=Run.Purpose.NIGHTLY)
    return Job(**runs.build_train_job(run, Blob()))
