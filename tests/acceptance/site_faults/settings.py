"""Settings of a site whose clock can be moved: `HOME/clock` holds the seconds by which it is ahead."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from django.utils import timezone

from dailytrain.settings import *  # noqa: F403
from dailytrain.settings import HOME, INSTALLED_APPS

INSTALLED_APPS = [*INSTALLED_APPS, "tests.support.proven_nodes.ProvenNodes"]

CLOCK = HOME / "clock"


def read_clock() -> datetime:
    try:
        ahead = float(CLOCK.read_text())
    except (FileNotFoundError, ValueError):
        ahead = 0.0
    return datetime.now(tz=UTC) + timedelta(seconds=ahead)


timezone.now = read_clock
