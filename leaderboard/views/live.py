"""Polling of live pages: whether anything has changed, and when to ask again."""

from __future__ import annotations

from typing import Any

from django.db.models import Subquery

from leaderboard.models.standings import LATEST_COMPUTATION
from scheduler.models import Event, Node

LIVE_SECONDS = 1.5
"""How soon a page asks again while something moves; `IDLE_SECONDS` while nothing does, 0 when nothing ever will."""
IDLE_SECONDS = 10
LATEST_EVENT = Subquery(Event.objects.order_by("-pk").values("pk")[:1])


def latest_event() -> int:
    """Return the id of the last change of any state: when it grows, a page reloads itself."""
    return Event.objects.order_by("-pk").values_list("pk", flat=True).first() or 0


def get_standings_revision() -> str:
    """Return the revision of a page that shows standings: they are recomputed after the event that changes them."""
    row = Event.objects.order_by("-pk").values_list("pk", LATEST_COMPUTATION).first()
    return format_revision(*row) if row else format_revision(None, None)


def format_revision(event: Any, computed_at: Any) -> str:
    return f"{event or 0}.{int(computed_at.timestamp() * 1e6) if computed_at else 0}"


def online_nodes() -> int:
    return Node.objects.filter(state__in=[Node.State.ONLINE, Node.State.DRAINING]).count()
