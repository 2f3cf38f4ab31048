"""A page's chart alone, for other sites to frame: `?embed=1`. It has no controls but a link to this site."""

from __future__ import annotations

from typing import Any

from django.http import Http404, HttpRequest, HttpResponse
from django.shortcuts import get_object_or_404, render
from django.urls import reverse
from django.utils import timezone
from django.views.decorators.http import require_safe

from leaderboard.board.query import parse_axis
from leaderboard.charts import curve_svg
from leaderboard.charts.frontier import build_frontier, load_records
from leaderboard.charts.panels import METRICS, Shown, View, build_panels
from leaderboard.models import Run, Track
from leaderboard.rankings.standings_store import load_standings
from leaderboard.reference_runs import parse_run_ids
from leaderboard.views import compare as comparison


@require_safe
def embed_board(request: HttpRequest) -> HttpResponse:
    track = Track.objects.default()
    if track is None:
        raise Http404
    return render_track(request, track)


@require_safe
def embed_track(request: HttpRequest, slug: str) -> HttpResponse:
    return render_track(request, get_object_or_404(Track.objects.select_related("season"), slug=slug))


def render_track(request: HttpRequest, track: Track) -> HttpResponse:
    """The records over time."""
    table = load_standings(track, parse_axis(request.GET))
    drawn = build_frontier(table, load_records(table), timezone.now())
    context = {"title": track.name, "page": track.get_absolute_url(), "frontier": drawn}
    return render_embed(request, "the records appear here once an entry beside the baseline has arrived", context)


@require_safe
def embed_run(request: HttpRequest, run_id: int) -> HttpResponse:
    """The loss curve; `?x=` as on the page."""
    run = get_object_or_404(Run.objects.with_entry(), pk=run_id)
    x = next((name for name in curve_svg.ABSCISSAE if name == request.GET.get("x")), curve_svg.ABSCISSAE[0])
    context = {
        "title": f"{run.entry.title}, seed {run.seed}",
        "page": run.get_absolute_url(),
        "run": run,
        "picture": curve_svg.draw_curve(run, curve_svg.load_curve(run), x),
        "unit": "nats per token",
    }
    return render_embed(request, "the curve appears here with the first steps of training", context)


@require_safe
def embed_comparison(request: HttpRequest) -> HttpResponse:
    """The loss curves of `?runs=1,2`."""
    runs = comparison.list_runs_in_order(parse_run_ids(request.GET.getlist("runs")))
    curves = comparison.load_comparison_curves(runs)
    shown = [Shown(run, curves[run.pk], f"run {run.pk}", number) for number, run in enumerate(runs)]
    drawn = build_panels(shown, View.from_query(request.GET), METRICS[:1])
    named = ",".join(str(run.pk) for run in runs)
    context = {
        "title": f"{len(runs)} runs, side by side",
        "page": f"{reverse('compare')}?runs={named}",
        "runs": list(enumerate(runs)),
        "panel": drawn[0] if drawn else None,
    }
    return render_embed(request, "the curves appear here with the first steps of training", context)


def render_embed(request: HttpRequest, empty: str, context: dict[str, Any]) -> HttpResponse:
    return render(request, "leaderboard/embed.html", {**context, "empty": empty})
