"""Revisions and polling intervals of live pages."""

from __future__ import annotations

from collections.abc import Mapping
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
    templates: Mapping[str, str], context: dict[str, Any], *, revision: str | int, wait: float, **data: Any
) -> JsonResponse:
    """Return what `live.js` asks for: the parts of a page by element id, rendered from `templates`, and more data.

    `wait` is the polling interval in seconds, 0 when nothing will change any more.
    """
    parts = {name: render_to_string(f"leaderboard/parts/{template}", context) for name, template in templates.items()}
    return JsonResponse({"parts": parts, "revision": revision, "wait": wait, **data})
