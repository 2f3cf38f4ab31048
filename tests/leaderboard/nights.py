"""Two nights in a row."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from leaderboard import nightly
from leaderboard.models import Night

MONDAY = datetime(2026, 3, 2, 20, 0, tzinfo=UTC)
TUESDAY = MONDAY + timedelta(days=1)


def tonight(now: datetime) -> Night:
    (night,) = nightly.tonight(now)
    return night
