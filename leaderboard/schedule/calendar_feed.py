"""The calendar as a feed (RFC 5545), for anybody's own calendar: what is due, and what the last nights brought.

A night keeps its UID, so what was an announcement becomes its result in the reader's calendar.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC, date, datetime, time, timedelta
from urllib.parse import urlsplit

from django.conf import settings
from django.urls import reverse
from icalendar import Calendar, Event

from leaderboard.models import Night, Run
from leaderboard.schedule.calendar import CalendarEvent, get_period, list_recent_nights, list_upcoming

REFRESH = timedelta(hours=6)
"""How often a reader should come by; RFC 7986, and Outlook's own word for it."""


def build_feed(now: datetime) -> bytes:
    calendar = Calendar()
    calendar.add("prodid", f"-//{settings.SITE_NAME}//calendar//EN")
    calendar.add("version", "2.0")
    calendar.add("name", settings.SITE_NAME)
    calendar.add("x-wr-calname", settings.SITE_NAME)
    calendar.add("refresh-interval", REFRESH, parameters={"VALUE": "DURATION"})
    calendar.add("x-published-ttl", "PT6H")
    for event in build_events(now):
        calendar.add_component(event)
    written: bytes = calendar.to_ical()
    return written


def build_events(now: datetime) -> Iterable[Event]:
    for night in list_recent_nights(now):
        yield build_night_event(night)
    for due in list_upcoming(now):
        yield build_upcoming_event(due, now)


def build_upcoming_event(due: CalendarEvent, now: datetime) -> Event:
    at = due.begins if due.what == "hours" else get_period(due.what, due.begins)
    says = "Jobs of this track may start." if due.what == "hours" else f"Budget {due.track.budget}."
    page = reverse("calendar") if due.what == "hours" else due.track.get_absolute_url()
    return build_event(build_uid(due.what, due.track.slug, at), due.title, due.begins, due.ends, now, says, page)


def build_night_event(night: Night) -> Event:
    run = night.run
    begins = (run.started_at if run else None) or night.created_at
    ends = (run.trained_at or run.finished_at) if run else None
    title = f"{night.track.name}: {describe_outcome(run)}"
    page = run.get_absolute_url() if run else reverse("calendar")
    changed = (run.finished_at if run else None) or night.created_at
    made = build_uid("nightly", night.track.slug, night.date)
    lasted = ends or begins + timedelta(seconds=night.track.expected_seconds if run else 0)
    found = build_event(made, title, begins, max(lasted, begins), changed, night.sentence, page)
    if run is None:
        found.add("status", "CANCELLED")
    return found


def describe_outcome(run: Run | None) -> str:
    """Return what came of a night, in a few words."""
    if run is None:
        return "no train departed"
    if run.state == Run.State.FINISHED:
        return f"{run.entry.title}, {run.bits_per_byte:.4f} bits per byte"
    if run.state in (Run.State.FAILED, Run.State.CANCELLED):
        return f"{run.entry.title}, did not arrive"
    waits = run.state in (Run.State.WAITING, Run.State.QUEUED)
    return f"{run.entry.title}, {'waits for a node' if waits else 'under way'}"


def build_event(uid: str, title: str, begins: datetime, ends: datetime, at: datetime, says: str, page: str) -> Event:
    made = Event()
    made.add("uid", uid)
    made.add("dtstamp", at.astimezone(UTC))
    made.add("dtstart", begins.astimezone(UTC))
    made.add("dtend", ends.astimezone(UTC))
    made.add("summary", title)
    made.add("description", says)
    made.add("url", settings.SITE_URL + page)
    made.add("transp", "TRANSPARENT")  # it keeps nobody busy
    return made


def build_uid(what: str, track: str, at: datetime | date) -> str:
    moment = at if isinstance(at, datetime) else datetime.combine(at, time(), UTC)
    return f"{what}-{track}-{moment.astimezone(UTC):%Y%m%dT%H%M}@{urlsplit(settings.SITE_URL).hostname}"
