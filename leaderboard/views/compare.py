"""Comparison of up to ten runs: `/compare/?runs=1,2`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from django.db.models import Q
from django.http import HttpRequest, HttpResponse, JsonResponse
from django.shortcuts import redirect, render
from django.urls import reverse
from django.views.decorators.http import condition, require_safe

from leaderboard import comparison
from leaderboard.charts import curve_svg
from leaderboard.charts.panels import Shown, build_points_table, script_columns
from leaderboard.models import Entry, Run, Score, Standing, StandingsTable
from leaderboard.rankings import paired_comparison
from leaderboard.rankings.standings_store import load_standings
from leaderboard.reference_runs import MAX_RUNS, parse_run_ids
from leaderboard.views.live import LIVE_SECONDS
from leaderboard.views.runs import build_panels_context, build_query_string

MAX_POINTS = 1000
"""Points of all curves together."""
MAX_ROWS, MIN_ROWS = 32, 4
"""Most rows of all tables together, and fewest rows of each."""
MAX_SUGGESTIONS = 6


@require_safe
def compare(request: HttpRequest) -> HttpResponse:
    """`?runs=1,2`; `?runs=1&runs=2` of forms redirects there. `&paired=1` compares item by item."""
    run_ids = parse_run_ids(request.GET.getlist("runs"))
    canonical = ",".join(map(str, run_ids))
    if request.GET.getlist("runs") not in ([], [canonical]):
        return redirect(f"{reverse('compare')}{build_query_string(request, runs=canonical)}".replace("%2C", ","))
    runs = list_runs_in_order(run_ids)
    context = {
        "runs": list(zip(range(len(runs)), runs, list_addresses_without(request, runs), strict=True)),
        "gone": [number for number in run_ids if number not in {run.pk for run in runs}],
        "suggested": list_suggestions(runs),
        "chosen": ",".join(str(run.pk) for run in runs),
        "most": MAX_RUNS,
        "revision": "",
        **(build_comparison(request, runs) if len(runs) > 1 else {}),
    }
    return render(request, "leaderboard/compare.html", context)


def list_runs_in_order(ids: Sequence[int]) -> list[Run]:
    """Return the runs that exist, in this order, without notebooks, which have no curve."""
    found = Run.objects.with_entry().exclude(entry__kind=Entry.Kind.NOTEBOOK).in_bulk(ids) if ids else {}
    return [found[run_id] for run_id in ids if run_id in found]


def is_on_board(run: Run) -> bool:
    return run.season_id == run.track.season_id


def build_comparison(request: HttpRequest, runs: Sequence[Run]) -> dict[str, Any]:
    rows_each, curves = max(MIN_ROWS, MAX_ROWS // len(runs)), load_comparison_curves(runs)
    shown = [Shown(run, curves[run.pk], f"run {run.pk}", number) for number, run in enumerate(runs)]
    differ, alike = comparison.compare_settings(runs)
    same_track = [run for run in runs if run.track_id == runs[0].track_id]
    pairs = comparison.compare_pairs(same_track) if is_on_board(runs[0]) else None
    scores = comparison.build_score_rows(runs, Score.objects.filter(run__in=runs))
    return {
        **build_panels_context(request, shown),
        "numbers": [(number, run, build_points_table(curves[run.pk], rows_each)) for number, run in enumerate(runs)],
        "differ": differ,
        "alike": alike,
        "pairs": pairs,
        "elsewhere": len(same_track) < len(runs),
        "scores": scores,
        "paired": paired_comparison.compare_with_first(runs) if "paired" in request.GET else None,
        "paired_address": build_query_string(request, paired="1"),
        "most_paired": paired_comparison.MAX_RUNS,
    }


def load_comparison_curves(runs: Sequence[Run]) -> dict[int, curve_svg.Curve]:
    return curve_svg.load_curves(runs, min(curve_svg.PICTURE_POINTS, MAX_POINTS // max(len(runs), 1)))


def list_addresses_without(request: HttpRequest, runs: Sequence[Run]) -> list[str]:
    """Return for each run the address of this page without it."""
    left = [",".join(str(other.pk) for other in runs if other is not run) for run in runs]
    return [build_query_string(request, runs=rest).replace("%2C", ",") for rest in left]


def list_suggestions(runs: Sequence[Run]) -> list[Standing]:
    """Return rows worth adding: the baseline's, the leader's, then the board's from the top."""
    if not runs or not is_on_board(runs[0]):
        return []
    table: StandingsTable = load_standings(runs[0].track)
    if table.pk is None:
        return []
    first = Q(position__lt=MAX_SUGGESTIONS + MAX_RUNS) | Q(entry__in=[table.baseline_id, table.leader_id])
    known = {run.pk for run in runs}
    rows = [
        row for row in table.rows.filter(first).select_related("entry").defer("ties") if row.latest_run_id not in known
    ]
    rows.sort(key=lambda row: (not row.is_baseline, row.entry_id != table.leader_id, row.position))
    return rows[:MAX_SUGGESTIONS]


def curves_etag(request: HttpRequest) -> str:
    run_ids = parse_run_ids(request.GET.getlist("runs"))
    known = Run.objects.filter(pk__in=run_ids).values_list("pk", "revision", "state").order_by("pk")
    return f'"{".".join(f"{run}-{revision}-{state}" for run, revision, state in known)}"'


@require_safe
@condition(etag_func=curves_etag)
def curves(request: HttpRequest) -> JsonResponse:
    """The curves of `?runs=1,2` as columns, for the scripts of this page and of the run page."""
    runs = list_runs_in_order(parse_run_ids(request.GET.getlist("runs")))
    found = load_comparison_curves(runs)
    return JsonResponse(
        {
            "parts": {},
            "curves": {run.pk: script_columns(run, found[run.pk], whole=False) for run in runs},
            "live": [run.pk for run in runs if not run.is_over],
            "revision": "",
            "wait": 0 if all(run.is_over for run in runs) else LIVE_SECONDS,
        }
    )
