"""A page's chart alone, for other people's pages: `?embed=1`. The one thing here that may stand in a frame."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar, cast

from csp.decorators import csp_replace
from django.http import HttpRequest, HttpResponse
from django.shortcuts import get_object_or_404, render
from django.urls import reverse
from django.utils import timezone
from django.views.decorators.clickjacking import xframe_options_exempt
from django.views.decorators.http import require_safe

from leaderboard.charts import curve_svg
from leaderboard.charts.frontier import build_frontier, load_records
from leaderboard.charts.panels import METRICS, Shown, View, panels
from leaderboard.models import Run, Track
from leaderboard.rankings.standings_store import load_standings
from leaderboard.reference_runs import parse_run_ids
from leaderboard.views import compare as comparison
from leaderboard.views.results import parse_axis

Framable = TypeVar("Framable", bound=Callable[..., HttpResponse])


@require_safe
def board(request: HttpRequest) -> HttpResponse:
    return render_track(request, get_object_or_404(Track.objects.select_related("season"), pk=default()))


@require_safe
def track(request: HttpRequest, slug: str) -> HttpResponse:
    return render_track(request, get_object_or_404(Track.objects.select_related("season"), slug=slug))


def default() -> int | None:
    found = Track.objects.default()
    return found.pk if found else None


def render_track(request: HttpRequest, track: Track) -> HttpResponse:
    """The records over time."""
    table = load_standings(track, parse_axis(request))
    drawn = build_frontier(table, load_records(table), timezone.now())
    context = {"title": track.name, "page": track.get_absolute_url(), "frontier": drawn}
    return render_embed(request, "the records appear here once an entry beside the baseline has arrived", context)


@require_safe
def run(request: HttpRequest, run_id: int) -> HttpResponse:
    """The loss curve; `?x=` as on the page."""
    found = get_object_or_404(Run.objects.with_entry(), pk=run_id)
    x = next((name for name in curve_svg.ABSCISSAE if name == request.GET.get("x")), curve_svg.ABSCISSAE[0])
    context = {
        "title": f"{found.entry.title}, seed {found.seed}",
        "page": found.get_absolute_url(),
        "run": found,
        "picture": curve_svg.picture(found, curve_svg.curve_of(found), x),
        "unit": "nats per token",
    }
    return render_embed(request, "the curve appears here with the first steps of training", context)


@require_safe
def compare(request: HttpRequest) -> HttpResponse:
    """The curves of `?runs=1,2`, and what says how they are drawn, as on the page."""
    runs = comparison.list_runs_in_order(parse_run_ids(request.GET.getlist("runs")))
    curves = comparison.curves_of(runs)
    shown = [Shown(run, curves[run.pk], f"run {run.pk}", number) for number, run in enumerate(runs)]
    drawn = panels(shown, View.asked(request.GET), METRICS[:1])
    named = ",".join(str(run.pk) for run in runs)
    context = {
        "title": f"{len(runs)} runs, side by side",
        "page": f"{reverse('compare')}?runs={named}",
        "runs": list(enumerate(runs)),
        "panel": drawn[0] if drawn else None,
    }
    return render_embed(request, "the curves appear here with the first steps of training", context)


def allow_framing(view: Framable) -> Framable:
    """Let pages of other sites show the view in a frame."""
    return cast(Framable, xframe_options_exempt(csp_replace({"frame-ancestors": ["*"]})(view)))


@allow_framing
def render_embed(request: HttpRequest, empty: str, context: dict[str, Any]) -> HttpResponse:
    """Return the bare page that anybody may frame: it has nothing to press but a link to here."""
    return render(request, "leaderboard/embed.html", {**context, "empty": empty})
