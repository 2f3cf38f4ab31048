"""Settings of a site whose nodes need no self-test and whose clock can be moved: `HOME/clock` holds the seconds by
which it is ahead."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from django.apps import AppConfig
from django.utils import timezone

from dailytrain.settings import *  # noqa: F403
from dailytrain.settings import HOME, INSTALLED_APPS

INSTALLED_APPS = [*INSTALLED_APPS, f"{__name__}.ProvenNodes"]
CLOCK = HOME / "clock"


class ProvenNodes(AppConfig):
    name, label, path = __name__, "proven_nodes", __file__.rpartition("/")[0]

    def ready(self) -> None:
        from scheduler import node_health

        node_health.is_self_test_required = lambda node: False


def read_clock() -> datetime:
    try:
        ahead = float(CLOCK.read_text())
    except (FileNotFoundError, ValueError):
        ahead = 0.0
    return datetime.now(tz=UTC) + timedelta(seconds=ahead)


timezone.now = read_clock
