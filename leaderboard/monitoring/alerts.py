"""Limits of metrics, for Prometheus' alert rules and for the page in the admin."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from typing import Any

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


# --- files for Prometheus and Grafana --------------------------------------------------------------------------------


def build_alert_rules() -> dict[str, Any]:
    """Return the content of `docker/prometheus/alerts.yml`."""
    rules = [
        {
            "alert": alert.name,
            "expr": f"{PREFIX}{alert.metric} > {alert.limit:g}",
            "for": f"{alert.minutes}m",
            "annotations": {"summary": alert.advice},
        }
        for alert in ALERTS
    ]
    unreachable = {
        "alert": "SiteUnreachable",
        "expr": 'up{job="dailytrain"} == 0',
        "for": "5m",
        "annotations": {"summary": "The site does not answer /metrics. Check the web process and the database."},
    }
    return {"groups": [{"name": "dailytrain", "rules": [unreachable, *rules]}]}


def build_dashboard(now: datetime) -> dict[str, Any]:
    """Return the content of `docker/grafana/dashboard.json`: one panel for each metric."""
    families = list(collect_metrics(now))
    panels = [build_panel(number, family.name, family.documentation) for number, family in enumerate(families)]
    return {
        "uid": "dailytrain",
        "title": "The Daily Train",
        "schemaVersion": 39,
        "time": {"from": "now-2d", "to": "now"},
        "refresh": "1m",
        "templating": {"list": [{"name": "source", "type": "datasource", "query": "prometheus"}]},
        "panels": panels,
    }


def build_panel(number: int, metric: str, title: str) -> dict[str, Any]:
    """Return a time series, three in a row."""
    unit = "s" if metric.endswith("_seconds") else "percentunit" if metric.endswith("_share") else "short"
    return {
        "id": number + 1,
        "type": "timeseries",
        "title": title,
        "datasource": {"type": "prometheus", "uid": "${source}"},
        "gridPos": {"x": 8 * (number % 3), "y": 7 * (number // 3), "w": 8, "h": 7},
        "fieldConfig": {"defaults": {"unit": unit, "min": 0}, "overrides": []},
        "targets": [{"refId": "A", "expr": metric}],
    }
