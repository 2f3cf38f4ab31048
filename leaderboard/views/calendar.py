"""The calendar page and feed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, time, timedelta
from typing import Any

from django.http import HttpRequest, HttpResponse
from django.shortcuts import render
from django.utils import timezone
from django.views.decorators.http import require_safe

from leaderboard.models import Night, Track, TrackHours
from leaderboard.schedule import calendar_feed
from leaderboard.schedule.calendar import (
    CalendarEvent,
    list_next_nightlies,
    list_recent_months,
    list_recent_nights,
    list_upcoming,
)
from leaderboard.schedule.night_checks import list_failing_checks

WEEKS = 5
SHOWN_NIGHTS = 14
DAY_SECONDS = 86_400
CACHE_SECONDS = 300


@dataclass
class Day:
    date: date
    is_today: bool
    is_past: bool
    nights: list[Night] = field(default_factory=list)
    due: list[CalendarEvent] = field(default_factory=list)
    is_far: bool = False
    """Beyond next week; narrow pages leave such days out."""

    @property
    def grouped_events(self) -> list[tuple[datetime, str, list[Track]]]:
        """Return time, kind and tracks of the day's events."""
        found: dict[tuple[datetime, str], list[Track]] = {}
        for one in self.due:
            found.setdefault((one.begins, one.what), []).append(one.track)
        return [(begins, what, tracks) for (begins, what), tracks in found.items()]

    @property
    def is_listed_on_narrow_page(self) -> bool:
        """Whether a narrow page lists it."""
        return bool(self.nights) or any(one.what == "monthly" or not self.is_far for one in self.due)


Bar = tuple[float, float]
"""Left end and width of a part of a track's week, in per cent."""


@require_safe
def calendar(request: HttpRequest) -> HttpResponse:
    now = timezone.now()
    due, nights = list_upcoming(now), list_recent_nights(now)
    tonight = list_next_nightlies(due, nights, now)
    context = {
        "now": now,
        "tonight": [(line, list_failing_checks(line.planned)) for line in tonight],
        "weeks": build_weeks(due, nights, now),
        "monthly": next((one for one in due if one.what == "monthly"), None),
        "several": len({night.track_id for night in nights} | {one.track.pk for one in due if one.what != "hours"}) > 1,
        "hours": [build_week(track, due, now) for track in list_tracks_with_hours(due)],
        "nights": nights[:SHOWN_NIGHTS],
        "months": list_recent_months(),
        "hour_marks": [100 * day / 7 for day in range(7)],
    }
    return render(request, "leaderboard/calendar.html", context)


def list_tracks_with_hours(due: Sequence[CalendarEvent]) -> list[Track]:
    tracks = {event.track.pk: event.track for event in due if event.what == "hours"}
    return sorted(tracks.values(), key=lambda track: (track.position, track.slug))


def build_weeks(due: Sequence[CalendarEvent], nights: Sequence[Night], now: datetime) -> list[list[Day]]:
    """Return five weeks (UTC) from Monday of last week."""
    today = now.astimezone(UTC).date()
    first = today - timedelta(days=today.weekday() + 7)
    days = {
        day: Day(day, is_today=day == today, is_past=day < today, is_far=day > today + timedelta(days=7))
        for day in (first + timedelta(days=offset) for offset in range(7 * WEEKS))
    }
    for night in nights:
        if night.date in days:
            days[night.date].nights.append(night)
    for event in due:
        day = event.begins.astimezone(UTC).date()
        if day in days and event.what != "hours":
            days[day].due.append(event)
    listed = list(days.values())
    return [listed[at : at + 7] for at in range(0, len(listed), 7)]


def build_week(track: Track, due: Sequence[CalendarEvent], now: datetime) -> dict[str, Any]:
    """Return a track's hours."""
    stretches = list(track.hours.all())
    mine = [event for event in due if event.what == "hours" and event.track.pk == track.pk]
    first = min(mine, key=lambda event: event.begins, default=None)
    return {
        "track": track,
        "bars": [bar for stretch in stretches for bar in build_bars(stretch)],
        "stretches": stretches,
        "next": first,
        "is_open": first is not None and first.begins <= now,
    }


def build_bars(hours: TrackHours) -> list[Bar]:
    """Return the bars of a period on a strip from Monday to Sunday; one across Sunday's end gives two."""
    begin = hours.weekday * DAY_SECONDS + count_seconds(hours.start)
    lasts = (count_seconds(hours.end) - count_seconds(hours.start)) % DAY_SECONDS or DAY_SECONDS
    whole = 7 * DAY_SECONDS
    over = max(0, begin + lasts - whole)
    parts = [(begin, lasts - over), *([(0, over)] if over else [])]
    return [(round(100 * at / whole, 3), round(100 * length / whole, 3)) for at, length in parts]


def count_seconds(at: time) -> int:
    return at.hour * 3600 + at.minute * 60 + at.second


@require_safe
def calendar_feed_view(request: HttpRequest) -> HttpResponse:
    return HttpResponse(
        calendar_feed.build_feed(timezone.now()),
        content_type="text/calendar; charset=utf-8",
        headers={
            "Cache-Control": f"public, max-age={CACHE_SECONDS}",
            "Content-Disposition": 'inline; filename="train.ics"',
        },
    )
