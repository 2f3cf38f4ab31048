"""Lending windows of nodes in their owners' time zones, on every day of the year."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime, time, timedelta
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scheduler import windows

MONDAY = datetime(2026, 3, 2, tzinfo=UTC)
ZONES = ["UTC", "Europe/Berlin", "America/New_York", "Asia/Kolkata", "Australia/Lord_Howe", "Pacific/Apia"]


@dataclass(frozen=True)
class Weekly:
    weekday: int
    start: time
    end: time


times = st.builds(time, st.integers(0, 23), st.sampled_from([0, 15, 30, 45]))
weeks = st.lists(st.builds(Weekly, st.integers(0, 6), times, times), max_size=5)
moments = st.integers(0, 2 * 366 * 24 * 12).map(lambda steps: MONDAY + steps * timedelta(minutes=5))


def get_seconds_left(week: list[Weekly], now: datetime, zone: str = "UTC") -> float | None:
    return windows.get_seconds_left(week, "windows", None, zone, now)


def is_lent(week: list[Weekly], wall_time: datetime) -> bool:
    """Check by the wall clock alone whether the node is lent."""
    for window in week:
        for day in (wall_time.date(), wall_time.date() - timedelta(days=1)):
            begin = datetime.combine(day, window.start)
            end = datetime.combine(day if window.end > window.start else day + timedelta(days=1), window.end)
            if day.weekday() == window.weekday and begin <= wall_time < end:
                return True
    return False


@given(weeks, moments, st.sampled_from(ZONES))
def test_node_is_lent_only_within_owner_windows(week: list[Weekly], now: datetime, zone: str) -> None:
    wall_time = now.astimezone(ZoneInfo(zone)).replace(tzinfo=None, fold=0)
    seconds = get_seconds_left(week, now, zone)
    if seconds != 0:
        assert is_lent(week, wall_time)
    utc_offsets = [
        (now + timedelta(hours=hours)).astimezone(ZoneInfo(zone)).utcoffset() for hours in range(-200, 201, 8)
    ]
    if len(set(utc_offsets)) == 1:  # no clock change within these days
        assert (seconds != 0) == is_lent(week, wall_time)


@given(weeks, moments, st.sampled_from(ZONES), st.floats(0, 1))
def test_node_is_lent_exactly_until_window_end(week: list[Weekly], now: datetime, zone: str, part: float) -> None:
    seconds = get_seconds_left(week, now, zone)
    if seconds is None:
        assert get_seconds_left(week, now + timedelta(days=7 * part), zone) != 0
    elif seconds > 0:
        assert seconds <= 7 * 86400
        later = get_seconds_left(week, now + timedelta(seconds=int(seconds * part * 0.999)), zone)
        assert later is not None
        assert later == pytest.approx(seconds - int(seconds * part * 0.999))
        assert get_seconds_left(week, now + timedelta(seconds=seconds), zone) == 0
    else:
        opens = windows.find_next_opening(week, "windows", zone, now)
        if opens:
            assert opens > now
            assert get_seconds_left(week, opens, zone) != 0
            assert get_seconds_left(week, opens - timedelta(seconds=1), zone) == 0


SUNDAY = [Weekly(6, time(1), time(5))]
EARLY, LATE = [Weekly(6, time(1), time(2, 30))], [Weekly(6, time(2, 30), time(4))]


@pytest.mark.parametrize(
    ("week", "zone", "now", "hours"),
    [
        (SUNDAY, "Europe/Berlin", datetime(2026, 3, 29, 0, tzinfo=UTC), 3),
        (SUNDAY, "Europe/Berlin", datetime(2026, 10, 24, 23, tzinfo=UTC), 5),
        (SUNDAY, "Europe/Berlin", datetime(2026, 11, 1, 0, tzinfo=UTC), 4),
        (EARLY, "Europe/Berlin", datetime(2026, 10, 24, 23, tzinfo=UTC), 1.5),  # an hour repeats, and is lent once
        (EARLY, "Europe/Berlin", datetime(2026, 10, 25, 1, 15, tzinfo=UTC), 0),
        (LATE, "Europe/Berlin", datetime(2026, 10, 25, 0, 45, tzinfo=UTC), 0),
        (LATE, "Europe/Berlin", datetime(2026, 10, 25, 1, 45, tzinfo=UTC), 1.25),
        ([Weekly(day, time(9), time(9)) for day in range(7)], "UTC", MONDAY, None),
        ([Weekly(day, time(0), time(0)) for day in range(7)], "Middle-earth/Bree", MONDAY, 0),
    ],
)
def test_window_ends_by_the_clock_of_its_zone(
    week: list[Weekly], zone: str, now: datetime, hours: float | None
) -> None:
    assert get_seconds_left(week, now, zone) == (None if hours is None else hours * 3600)


def test_availability_always_and_until() -> None:
    assert windows.get_seconds_left([], "always", None, "UTC", MONDAY) is None
    for until, hours in ((MONDAY + timedelta(hours=12), 12), (MONDAY - timedelta(hours=1), 0), (None, 0)):
        assert windows.get_seconds_left([], "until", until, "UTC", MONDAY) == hours * 3600
