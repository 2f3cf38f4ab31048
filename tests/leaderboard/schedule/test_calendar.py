"""The calendar: upcoming runs, obstacles, past nights, hours of tracks and the iCalendar feed."""

from __future__ import annotations

from datetime import UTC, datetime, time, timedelta
from zoneinfo import ZoneInfo

import pytest
import time_machine
from django.test import Client
from django.utils import timezone
from django_celery_beat.tzcrontab import TzAwareCrontab
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st
from icalendar import Calendar

from dailytrain import schedule
from leaderboard.models import Night, Track
from leaderboard.schedule import calendar, due_times, nightly
from leaderboard.views.calendar import build_bars
from tests.support import scene

pytestmark = pytest.mark.django_db
NOW = datetime(2026, 3, 4, 12, 0, tzinfo=UTC)
DAY = timedelta(days=1)


@pytest.fixture
def beat_schedule(db: None) -> None:
    schedule.install()


# --- upcoming runs ---------------------------------------------------------------------------------------------------


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    minute=st.integers(0, 59),
    hour=st.integers(0, 23),
    days=st.sampled_from(["*", "1-5", "0", "sat,sun"]),
    dates=st.sampled_from(["*", "1", "29", "*/7"]),
    zone=st.sampled_from(["UTC", "Europe/Berlin", "America/New_York"]),
    now=st.datetimes(datetime(2026, 1, 1), datetime(2027, 6, 1), timezones=st.just(UTC)),
)
def test_next_crontab_time_matches_celery(
    minute: int, hour: int, days: str, dates: str, zone: str, now: datetime
) -> None:
    crontab = TzAwareCrontab(f"{minute}", f"{hour}", days, dates, "*", tz=ZoneInfo(zone))
    now = now.replace(second=30, microsecond=0)
    computed = next(due_times.list_crontab_times(crontab, now, now + timedelta(days=400)), None)
    local, hour_ago = now.astimezone(crontab.tz), (now - timedelta(hours=1)).astimezone(crontab.tz)
    # In the hour after the clocks change, Celery's answer depends on the last start.
    assume(computed is not None and local.utcoffset() == hour_ago.utcoffset())
    last, delta, _ = crontab.remaining_delta(local)
    celery_time = (last.replace(tzinfo=None) + delta).replace(tzinfo=crontab.tz).astimezone(UTC)
    assert computed is not None
    assert abs(computed - celery_time) in (timedelta(), timedelta(hours=1)), "an hour where the clocks change"


# --- obstacles -------------------------------------------------------------------------------------------------------


def get_page_text(client: Client) -> str:
    return " ".join(client.get("/calendar/").content.decode().split())


@time_machine.travel(NOW, tick=False)
def test_calendar_page_shows_past_nights_and_track_hours(beat_schedule: None, client: Client) -> None:
    night = scene.create_night_board()
    today = timezone.now().date()
    Night.objects.create(date=today - DAY, track=night["track"], run=night["best"], sentence="main has moved.")
    Night.objects.create(date=today - 2 * DAY, track=night["track"], sentence="Nothing is trained.")
    Track.objects.update(kind=Track.Kind.COMMUNITY)
    sunday_night = night["track"].hours.create(weekday=6, start=time(22), end=time(6))
    assert build_bars(sunday_night) == [(98.81, 1.19), (0.0, 3.571)]
    page = get_page_text(client)
    assert page.count("<rect") == 2
    assert "Sunday, 22:00 to 06:00" in page
    assert f'<a href="/runs/{night["best"].pk}/">2.0412</a>' in page
    assert "Nothing is trained." in page
    assert page.count("is-today") == 1


# --- the feed --------------------------------------------------------------------------------------------------------


@time_machine.travel(NOW, tick=False)
def test_calendar_feed_is_valid_icalendar(beat_schedule: None, client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("django.conf.settings.SITE_URL", "https://train.example.org")
    night = scene.create_night_board()
    yesterday = timezone.now().date() - DAY
    Night.objects.create(date=yesterday, track=night["track"], run=night["best"], sentence="main; has moved, " * 20)
    Night.objects.create(date=yesterday - DAY, track=night["track"], sentence="No train.")
    response = client.get("/calendar.ics")
    assert response["Content-Type"] == "text/calendar; charset=utf-8"
    assert max(len(line) for line in response.content.split(b"\r\n")) <= 75
    events = {str(event["UID"]): event for event in Calendar.from_ical(response.content).walk("VEVENT")}
    finished = events[f"nightly-three-minutes-{yesterday:%Y%m%d}T0000@train.example.org"]
    assert finished["SUMMARY"] == "Three minutes on a CPU: Smeared keys, 2.0412 bits per byte"
    assert finished["DESCRIPTION"] == "main; has moved, " * 20
    assert finished["URL"] == f"https://train.example.org/runs/{night['best'].pk}/"
    (cancelled,) = (event for event in events.values() if event.get("STATUS") == "CANCELLED")
    assert cancelled["SUMMARY"] == "Three minutes on a CPU: no run started"
    name = "Nightly train of main, Three minutes on a CPU"
    upcoming = [event for event in events.values() if event["SUMMARY"] == name]
    assert len(upcoming) == 35
    assert all(event["DTEND"].dt - event["DTSTART"].dt == timedelta(seconds=180) for event in upcoming)


@time_machine.travel(NOW, tick=False)
def test_calendar_feed_keeps_uid_of_night_after_start(beat_schedule: None, track: Track, client: Client) -> None:
    def list_uids() -> set[str]:
        return {str(event["UID"]) for event in Calendar.from_ical(client.get("/calendar.ics").content).walk("VEVENT")}

    earlier_uids = list_uids()
    first = calendar.list_upcoming(timezone.now())[0].begins
    (night,) = nightly.start_nightly_runs(first)
    Night.objects.filter(pk=night.pk).update(date=timezone.now().date())
    assert f"nightly-small-{timezone.now():%Y%m%d}T0000@127.0.0.1" in list_uids()
    assert len(earlier_uids - list_uids()) <= 1
