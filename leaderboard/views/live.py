"""Revisions and polling intervals of live pages."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from django.db.models import Subquery
from django.http import JsonResponse
from django.template.loader import render_to_string

from leaderboard.models.standings import LATEST_COMPUTATION
from scheduler.models import Event

LIVE_SECONDS = 1.5
"""Polling interval while something moves."""
IDLE_SECONDS = 10
LATEST_EVENT = Subquery(Event.objects.order_by("-pk").values("pk")[:1])


def get_standings_revision() -> str:
    """Return the revision of a page with standings, which change after the event that causes it."""
    row = Event.objects.order_by("-pk").values_list("pk", LATEST_COMPUTATION).first()
    return format_revision(*row) if row else format_revision(None, None)


def format_revision(event: Any, computed_at: Any) -> str:
    return f"{event or 0}.{int(computed_at.timestamp() * 1e6) if computed_at else 0}"


def render_live(
    page: str, parts: Iterable[str], context: dict[str, Any], *, revision: str | int, wait: float, **data: Any
) -> JsonResponse:
    """Return what `live.js` asks for: the parts of a page's template (`partialdef`) by element id, and more data.

    `wait` is the polling interval in seconds, 0 when nothing will change any more.
    """
    rendered = {part: render_to_string(f"{page}#{part}", context) for part in parts}
    return JsonResponse({"parts": rendered, "revision": revision, "wait": wait, **data})
