"""Notices of the alerts of `leaderboard.monitoring.alerts`, for sites without Prometheus: once a day for each alert."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from django.conf import settings
from django.urls import reverse
from django.utils import timezone

from leaderboard.monitoring.alerts import Measurement, list_measurements
from leaderboard.notifications.message import Message
from leaderboard.schedule.calendar import get_next_nightly

NIGHT_LEAD = timedelta(hours=4)
"""Before a night starts, its missing parts are no alert yet: nodes are lent for the night alone."""


def list_alerts(now: datetime) -> dict[str, Measurement]:
    """Return the measurements above their limits by key: the alert's name and its label."""
    rows = {f"{row.alert.name}.{row.label}": row for row in list_measurements(now) if row.alert and row.is_alerting}
    next_night = get_next_nightly(now)
    if next_night is None or next_night - now > NIGHT_LEAD:
        return {key: row for key, row in rows.items() if not key.startswith("NightWillFail.")}
    return rows


def list_due_alerts(now: datetime) -> list[str]:
    """Return what the notices of these alerts are about: one notice a day."""
    return [f"{now.astimezone(UTC).date()}.{key}"[:100] for key in list_alerts(now)]


def compose_alert(about: str) -> Message | None:
    """Return the notice of an alert; None if the value is below its limit again."""
    rows = list_alerts(timezone.now())
    row = next((row for key, row in rows.items() if f"{about[:10]}.{key}"[:100] == about), None)
    if row is None or row.alert is None:
        return None
    where = f" ({row.label})" if row.label else ""
    return Message(
        title=f"{settings.SITE_NAME}: {row.alert.name}{where}",
        lines=(f"{row.meaning} Now {row.value_text}, limit {row.limit_text}.", row.alert.advice),
        url=settings.SITE_URL + reverse("admin:monitoring"),
    )
