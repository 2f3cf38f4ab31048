"""Start nightly runs on two consecutive days."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from leaderboard.models import Night
from leaderboard.schedule import nightly

MONDAY = datetime(2026, 3, 2, 20, 0, tzinfo=UTC)
TUESDAY = MONDAY + timedelta(days=1)


def start_night(now: datetime) -> Night:
    (night,) = nightly.start_nightly_runs(now)
    return night
