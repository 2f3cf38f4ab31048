"""The page of an entry."""

from __future__ import annotations

from typing import Any

from django.http import HttpRequest, HttpResponse, JsonResponse
from django.shortcuts import get_object_or_404, render
from django.views.decorators.http import condition, require_safe

from leaderboard import estimates, smoking, standings
from leaderboard import multiplier_pictures as pictures
from leaderboard.judged import name_of
from leaderboard.models import Entry
from leaderboard.standings import Standings
from leaderboard.views.live import latest_event
from leaderboard.views.results import axis_of, results, results_etag
from scheduler.models import Event
from trainer.scoring.multiplier import AXES


@require_safe
def entry(request: HttpRequest, entry_id: int) -> HttpResponse:
    found = get_object_or_404(Entry.objects.select_related("track__season", "smoke_job"), pk=entry_id)
    table = standings.of(found.track, axis_of(request))
    context = {
        "entry": found,
        "runs": found.runs.select_related("entry", "track").order_by("-created_at"),
        "axes": AXES,
        "standings": table,
        **row_of(table, found),
        "smoking": smoking.under_way(found),
        "estimate": estimates.estimate(found) if estimates.is_ahead(found) else None,
        "events": Event.objects.about(found),
        "revision": latest_event(),
    }
    return render(request, "leaderboard/entry.html", context)


def row_of(table: Standings, entry: Entry) -> dict[str, Any]:
    """Return an entry's row with its drawing, for a page that shows it alone."""
    row = table.row(entry.pk)
    scale = pictures.scale_of([row]) if row else None
    return {"row": row, "scale": scale, "whisker": pictures.whisker(row, scale) if row else None}


@require_safe
@condition(etag_func=results_etag)
def entry_results(request: HttpRequest, entry_id: int) -> JsonResponse:
    """The same, with the entry's own line on top."""
    found = get_object_or_404(Entry.objects.select_related("track__season"), pk=entry_id)
    table = standings.of(found.track, axis_of(request))
    estimate = standings.estimate_dict(table, found.pk)
    return results({"entry": name_of(found.pk), "estimate": estimate, **table.to_dict()})
