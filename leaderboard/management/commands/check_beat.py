"""`manage.py check_beat`: exit with an error if Celery beat has started no task for some minutes. A health check."""

from __future__ import annotations

from typing import Any

from django.core.management.base import BaseCommand, CommandError
from django.utils import timezone

from leaderboard.monitoring.alerts import ALERTS
from leaderboard.monitoring.metrics import measure_beat_age
from leaderboard.schedule.night_checks import get_last_beat
from scheduler.lease_sweeper import repair_clock


class Command(BaseCommand):
    help = __doc__

    def handle(self, **options: Any) -> None:
        now = timezone.now()
        age, last = measure_beat_age(now), get_last_beat()
        if repair_clock(now):
            raise CommandError(f"The clock was ahead: a task has started at {last}. Its times are corrected now.")
        limit = next(alert.limit for alert in ALERTS if alert.metric == "beat_age_seconds")
        if age > limit:
            raise CommandError(f"Celery beat last started a task {age:.0f} s ago; the limit is {limit:.0f} s.")
        self.stdout.write(f"Celery beat last started a task {age:.0f} s ago.")
