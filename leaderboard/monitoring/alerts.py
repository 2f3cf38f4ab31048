"""Limits of metrics, for the page in the admin and for notices; `docker/prometheus/alerts.yml` has the same."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime

from leaderboard import formatting
from leaderboard.monitoring.metrics import PREFIX, collect_metrics

MINUTE, HOUR = 60.0, 3600.0


@dataclass(frozen=True)
class Alert:
    """A metric above its limit for some minutes."""

    name: str
    metric: str
    limit: float
    minutes: int
    advice: str


ALERTS = (
    Alert("BeatSilent", "beat_age_seconds", 3 * MINUTE, 2, "Start Celery beat and a worker, and read their logs."),
    Alert("NightWillFail", "night_obstacles", 0, 10, "Run manage.py check_night for the track."),
    Alert("NightDidNotFinish", "night_age_seconds", 60 * HOUR, 10, "Open the track's last nightly run."),
    Alert("NoTrustedNode", "score_wait_without_scorer_seconds", 15 * MINUTE, 5, "Start a trusted node. It scores."),
    Alert("NodesFail", "nodes_failing", 0, 60, "Read below why each fails. Tell its owner, or mend it."),
    Alert("QueueWaits", "queue_oldest_seconds", 7 * 24 * HOUR, 60, "Find what the oldest job of this kind waits for."),
    Alert("LeasesLost", "leases_lost_day", 20, 10, "Open the nodes that lose leases, and pause those that do."),
    Alert("WebhooksLate", "webhook_lag_seconds", 10 * MINUTE, 5, "Read the worker's log; open the outbox."),
    Alert("OutboxLate", "outbox_lag_seconds", 30 * MINUTE, 5, "Read the worker's log; open the outbox."),
    Alert(
        "OutboxFailed",
        "outbox_failed",
        0,
        10,
        "Open the failed messages, and send them again after the cause is fixed.",
    ),
    Alert("DiskFull", "disk_used_share", 0.9, 10, "Free or add space: uploads fail when the disk is full."),
)


@dataclass(frozen=True)
class Measurement:
    """One value of a metric, and the alert that it raises now, without regard to its minutes."""

    metric: str
    meaning: str
    label: str
    value: float
    alert: Alert | None

    @property
    def is_alerting(self) -> bool:
        return self.alert is not None and self.value > self.alert.limit

    @property
    def value_text(self) -> str:
        return format_value(self.metric, self.value)

    @property
    def limit_text(self) -> str:
        return format_value(self.metric, self.alert.limit) if self.alert else ""


def format_value(metric: str, value: float) -> str:
    if math.isinf(value):
        return "never"
    if metric.endswith("_seconds"):
        return formatting.duration(value)
    return f"{value:.0%}" if metric.endswith("_share") else f"{value:,.0f}"


def list_measurements(now: datetime) -> Iterator[Measurement]:
    alerts = {PREFIX + alert.metric: alert for alert in ALERTS}
    for family in collect_metrics(now):
        alert = alerts.get(family.name)
        for sample in family.samples:
            label = " ".join(sample.labels.values())
            name = family.name.removeprefix(PREFIX)
            yield Measurement(name, family.documentation, label, sample.value, alert)
