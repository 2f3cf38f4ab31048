"""A clock that was ahead and comes back: beat, leases and sweeps go on, and the site says so."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
import time_machine
from celery.beat import ScheduleEntry
from django.core.management import CommandError, call_command
from django.utils import timezone
from django_celery_beat import schedulers
from django_celery_beat.models import PeriodicTask

from dailytrain import schedule
from dailytrain.celery import app
from leaderboard.models import Season, Track
from leaderboard.monitoring.alerts import list_measurements
from leaderboard.schedule.night_checks import check_next_night
from scheduler import lease_sweeper
from scheduler.models import Event, Job, Sweep
from tests.support.pool import Agent, create_job, create_node

pytestmark = pytest.mark.django_db
NOON = datetime(2026, 3, 2, 12, tzinfo=UTC)
AHEAD = NOON + timedelta(days=1)
BACK = NOON + timedelta(minutes=5)


class RecordingScheduler(schedulers.DatabaseScheduler):  # type: ignore[misc]
    """Celery beat without a broker."""

    started: list[str]
    producer: Any = None

    def apply_entry(self, entry: ScheduleEntry, producer: Any = None) -> None:
        self.started.append(entry.task)

    def run(self) -> list[str]:
        self.started = []
        for _ in range(30):
            self.tick()
        return self.started


def test_beat_goes_on_after_clock_was_ahead(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(schedulers, "close_old_connections", lambda: None)  # the test's database is one of them
    monkeypatch.setattr(schedulers, "Finalize", lambda *arguments, **options: None)  # it would write when Python ends
    with time_machine.travel(NOON, tick=False) as clock:
        schedule.install()
        beat = RecordingScheduler(app=app, lazy=False)
        clock.move_to(AHEAD)
        beat.run()
        clock.shift(timedelta(seconds=20))
        assert "scheduler.tasks.expire_leases" in beat.run()
        beat.sync()
        for hours in (0, 20):
            clock.move_to(BACK + timedelta(hours=hours))
            assert beat.run() == [], "beat waits until its last start is over"
        lease_sweeper.sweep_leases()
        clock.shift(timedelta(seconds=20))
        started = beat.run()
        clock.shift(timedelta(seconds=20))
        assert {"scheduler.tasks.expire_leases", "leaderboard.tasks.fill_ladders"} <= {*started, *beat.run()}


def test_lease_of_a_clock_that_was_ahead_goes_on_until_its_node_is_silent() -> None:
    agent = Agent(create_node("one")[1])
    with time_machine.travel(AHEAD, tick=False) as clock:
        Sweep.objects.create(pk=1, at=AHEAD)
        create_job()
        claimed_job = agent.claim_job()
        clock.move_to(BACK)
        assert claimed_job.upload_checkpoint(10, b"ten").status_code == 200
        agent.request_action()  # a poll repairs the sweeps, too
        assert Sweep.objects.get().at == BACK
        assert claimed_job.row.expires_at == BACK + timedelta(seconds=60)
        clock.shift(timedelta(seconds=50))
        claimed_job.send_heartbeat(seconds=90)
        assert claimed_job.row.seconds == 90
        for _ in range(8):
            clock.shift(timedelta(seconds=10))
            lease_sweeper.sweep_leases()
        assert Job.objects.get().state == Job.State.QUEUED
        assert Event.objects.filter(sentence__startswith="The clock was ahead").count() == 1


def test_health_check_of_a_clock_that_was_ahead_alarms_and_repairs() -> None:
    with time_machine.travel(BACK, tick=False):
        schedule.install()
        PeriodicTask.objects.update(last_run_at=AHEAD)
        rows = {row.metric: row for row in list_measurements(timezone.now())}
        assert rows["beat_age_seconds"].is_alerting
        assert rows["beat_age_seconds"].value > 23 * 3600
        track = Track.objects.create(slug="small", season=Season.objects.create(), budget="1s", expected_seconds=1)
        advice = {check.name: check.advice for check in check_next_night(track, timezone.now())}["Background work"]
        assert "in the future: the clock was ahead" in advice
        with pytest.raises(CommandError, match="The clock was ahead"):
            call_command("check_beat")
        assert set(PeriodicTask.objects.values_list("last_run_at", flat=True)) == {BACK}
        call_command("check_beat")
