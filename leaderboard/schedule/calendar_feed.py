"""The calendar as an iCalendar feed (RFC 5545): scheduled runs, and the results of the last nights.

A night has the UID of its scheduled run, so calendars replace the announcement by the result.
"""

from __future__ import annotations

from datetime import UTC, date, datetime, time, timedelta
from urllib.parse import urlsplit

from django.conf import settings
from django.urls import reverse
from icalendar import Calendar, Event

from leaderboard.models import Night, Run
from leaderboard.schedule.calendar import CalendarEvent, get_period, list_recent_nights, list_upcoming

REFRESH = timedelta(hours=6)
"""Refresh interval by RFC 7986 and by Outlook's X-PUBLISHED-TTL."""


def build_feed(now: datetime) -> bytes:
    calendar = Calendar()
    calendar.add("prodid", f"-//{settings.SITE_NAME}//calendar//EN")
    calendar.add("version", "2.0")
    calendar.add("name", settings.SITE_NAME)
    calendar.add("x-wr-calname", settings.SITE_NAME)
    calendar.add("refresh-interval", REFRESH, parameters={"VALUE": "DURATION"})
    calendar.add("x-published-ttl", "PT6H")
    for night in list_recent_nights(now):
        calendar.add_component(build_night_event(night))
    for due in list_upcoming(now):
        calendar.add_component(build_upcoming_event(due, now))
    return bytes(calendar.to_ical())


def build_upcoming_event(due: CalendarEvent, now: datetime) -> Event:
    at = due.begins if due.what == "hours" else get_period(due.what, due.begins)
    description = "Jobs of this track may start." if due.what == "hours" else f"Budget {due.track.budget}."
    page = reverse("calendar") if due.what == "hours" else due.track.get_absolute_url()
    return build_event(build_uid(due.what, due.track.slug, at), due.title, due.begins, due.ends, now, description, page)


def build_night_event(night: Night) -> Event:
    run = night.run
    begins = (run.started_at if run else None) or night.created_at
    ends = (run.trained_at or run.finished_at) if run else None
    title = f"{night.track.name}: {describe_outcome(run)}"
    page = run.get_absolute_url() if run else reverse("calendar")
    changed = (run.finished_at if run else None) or night.created_at
    uid = build_uid("nightly", night.track.slug, night.date)
    lasted = ends or begins + timedelta(seconds=night.track.expected_seconds if run else 0)
    event = build_event(uid, title, begins, max(lasted, begins), changed, night.sentence, page)
    if run is None:
        event.add("status", "CANCELLED")
    return event


def describe_outcome(run: Run | None) -> str:
    """Return the outcome of a night in a few words."""
    if run is None:
        return "no run started"
    if run.state == Run.State.FINISHED:
        return f"{run.entry.title}, {run.bits_per_byte:.4f} bits per byte"
    if run.state in (Run.State.FAILED, Run.State.CANCELLED):
        return f"{run.entry.title}, {run.get_state_display().lower()}"
    waits = run.state in (Run.State.WAITING, Run.State.QUEUED)
    return f"{run.entry.title}, {'waits for a node' if waits else 'in progress'}"


def build_event(uid: str, title: str, begins: datetime, ends: datetime, at: datetime, text: str, page: str) -> Event:
    event = Event()
    event.add("uid", uid)
    event.add("dtstamp", at.astimezone(UTC))
    event.add("dtstart", begins.astimezone(UTC))
    event.add("dtend", ends.astimezone(UTC))
    event.add("summary", title)
    event.add("description", text)
    event.add("url", settings.SITE_URL + page)
    event.add("transp", "TRANSPARENT")  # does not block the calendar
    return event


def build_uid(what: str, track: str, at: datetime | date) -> str:
    moment = at if isinstance(at, datetime) else datetime.combine(at, time(), UTC)
    return f"{what}-{track}-{moment.astimezone(UTC):%Y%m%dT%H%M}@{urlsplit(settings.SITE_URL).hostname}"
