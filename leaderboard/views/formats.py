"""Other formats of a page at the same address: `?format=csv`, `?format=json` and `?embed=1`.

`urls.py` wraps a page in `with_formats`.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any

from django.http import HttpRequest, HttpResponse
from django.http.response import HttpResponseBase
from django.shortcuts import get_object_or_404
from django.views.decorators.http import conditional_page, require_safe

from leaderboard import exports
from leaderboard.exports import Table
from leaderboard.models import Entry, Run, Track
from leaderboard.rankings.standings_store import load_standings
from leaderboard.reference_runs import parse_run_ids
from leaderboard.views.results import parse_axis
from scheduler.rate_limits import build_rate_limit_response

View = Callable[..., HttpResponseBase]
FORMATS = {
    "csv": (exports.write_csv, "text/csv; charset=utf-8"),
    "json": (exports.write_json, "application/json"),
}


def with_formats(page: View, *, table: Callable[..., Table] | None = None, embed: View | None = None) -> View:
    """Return a view that sends the page, or its table or its chart if the query string selects one."""

    @wraps(page)
    def respond(request: HttpRequest, **place: Any) -> HttpResponseBase:
        if embed is not None and request.GET.get("embed") == "1":
            return embed(request, **place)
        form = request.GET.get("format", "")
        if table is not None and form in FORMATS:
            return send_table(request, form, table, place)
        return page(request, **place)

    return respond


@require_safe
@conditional_page
def send_table(request: HttpRequest, form: str, table: Callable[..., Table], place: dict[str, Any]) -> HttpResponse:
    if (error := build_rate_limit_response(request, "read")) is not None:
        return error
    write, kind = FORMATS[form]
    found = table(request, **place)
    name = {"Content-Disposition": f'inline; filename="{found.name}.{form}"'}
    return HttpResponse(write(found), content_type=kind, headers=name)


# --- tables of the pages ----------------------------------------------------------------------------------------------


def board(request: HttpRequest) -> Table:
    return board_of(request, Track.objects.default())


def track(request: HttpRequest, slug: str) -> Table:
    return board_of(request, get_object_or_404(Track.objects.select_related("season"), slug=slug))


def board_of(request: HttpRequest, track: Track | None) -> Table:
    return exports.build_board_table(load_standings(track, parse_axis(request))) if track else Table("board", [])


def entry(request: HttpRequest, entry_id: int) -> Table:
    return exports.build_entry_table(get_object_or_404(Entry, pk=entry_id))


def run(request: HttpRequest, run_id: int) -> Table:
    return exports.build_run_table(get_object_or_404(Run, pk=run_id))


def compare(request: HttpRequest) -> Table:
    """The runs of `?runs=1,2`, in the order named; numbers that are no run's are left out."""
    named = parse_run_ids(request.GET.getlist("runs"))
    found = {run.pk: run for run in Run.objects.with_entry().filter(pk__in=named)}
    return exports.build_runs_table([found[pk] for pk in named if pk in found], "compare")


def queue(request: HttpRequest) -> Table:
    return exports.build_queue_table()


def nodes(request: HttpRequest) -> Table:
    return exports.build_nodes_table()
