"""Lending times of nodes: weekly windows in local time. Pure.

Adjacent windows are merged. When the clocks change, an ambiguous or missing local time is interpreted so that the node
is lent shorter, never longer.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from datetime import UTC, date, datetime, time, timedelta
from functools import lru_cache
from typing import NamedTuple, Protocol, TypeVar
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

ALWAYS, WINDOWS, UNTIL = "always", "windows", "until"
"""`Node.Available`."""
WEEK = timedelta(days=7)
NOT_LENT = 0.0

Moment = TypeVar("Moment", datetime, float)


class WeeklyWindow(Protocol):
    """A `Window`: from `start` on `weekday` (0 is Monday) to `end`, on the next day unless it is later than `start`."""

    @property
    def weekday(self) -> int: ...
    @property
    def start(self) -> time: ...
    @property
    def end(self) -> time: ...


def get_seconds_left(
    windows: Collection[WeeklyWindow], available: str, until: datetime | None, timezone: str, now: datetime
) -> float | None:
    """Return the seconds until the lending time ends: 0 if the node is not lent now, None if no end is near.

    No end is near if the node is lent for the next week without a break. An unknown time zone lends nothing.
    """
    if available == ALWAYS:
        return None
    if available == UNTIL:
        return max((until - now).total_seconds(), NOT_LENT) if until else NOT_LENT
    for begin, end in list_intervals(windows, timezone, now):
        if begin <= now < end:
            return None if end - now > WEEK else (end - now).total_seconds()
    return NOT_LENT


def find_next_opening(
    windows: Collection[WeeklyWindow], available: str, timezone: str, now: datetime
) -> datetime | None:
    """Return when a node that is not lent now is lent again, if that is known."""
    if available != WINDOWS:
        return None
    return next((begin for begin, _ in list_intervals(windows, timezone, now) if begin > now), None)


def list_intervals(windows: Collection[WeeklyWindow], timezone: str, now: datetime) -> list[tuple[datetime, datetime]]:
    """Return the lending times in UTC, from a week before `now` to more than a week after."""
    known = parse_time_zone(timezone)
    if known is None:
        return []
    lent = tuple(WindowKey(window.weekday, window.start, window.end) for window in windows)
    return list_intervals_around(lent, known, now.astimezone(known).date())


class WindowKey(NamedTuple):
    """A hashable `WeeklyWindow`."""

    weekday: int
    start: time
    end: time


@lru_cache(maxsize=10_000)
def list_intervals_around(
    windows: tuple[WindowKey, ...], zone: ZoneInfo, today: date
) -> list[tuple[datetime, datetime]]:
    """Return the lending times of the weeks around a day. Cached: every call of a node needs them."""
    merged = merge_intervals(sorted(list_local_intervals(windows, today)))
    # Of ambiguous times the later start and the earlier end.
    found = [(max(convert_local_time(begin, zone)), min(convert_local_time(end, zone))) for begin, end in merged]
    return [(begin, end) for begin, end in found if begin < end]


def parse_time_zone(timezone: str) -> ZoneInfo | None:
    """Return the time zone of this IANA name, or None if it is unknown."""
    try:
        return ZoneInfo(timezone)
    except (ZoneInfoNotFoundError, ValueError, OSError):
        return None


def merge_intervals(intervals: Iterable[tuple[Moment, Moment]]) -> list[tuple[Moment, Moment]]:
    """Merge adjacent and overlapping intervals, which are sorted."""
    found: list[tuple[Moment, Moment]] = []
    for begin, end in intervals:
        if found and begin <= found[-1][1]:
            found[-1] = (found[-1][0], max(found[-1][1], end))
        else:
            found.append((begin, end))
    return found


def list_local_intervals(windows: Collection[WeeklyWindow], today: date) -> Iterator[tuple[datetime, datetime]]:
    """Yield each window on each of its days, more than a week to either side."""
    for offset in range(-8, 10):
        day = today + timedelta(days=offset)
        for window in windows:
            if window.weekday == day.weekday():
                last = day if window.end > window.start else day + timedelta(days=1)
                yield datetime.combine(day, window.start), datetime.combine(last, window.end)


def convert_local_time(local: datetime, zone: ZoneInfo) -> list[datetime]:
    """Return the two UTC times that a local time may mean; equal ones if it is not ambiguous."""
    return [local.replace(tzinfo=zone, fold=fold).astimezone(UTC) for fold in (0, 1)]
