"""Runs beside each other: `/compare/?runs=1,2`, up to ten. The address is all there is to share."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any

from django.http import HttpRequest, HttpResponse, JsonResponse
from django.shortcuts import redirect, render
from django.urls import reverse
from django.views.decorators.http import condition, require_safe

from leaderboard import comparison
from leaderboard.charts import curve_svg
from leaderboard.charts.panels import SMOOTHINGS, Shown, View, panels, script_columns, table
from leaderboard.models import Entry, Run, Score
from leaderboard.rankings import paired_comparison, standings
from leaderboard.rankings.eligible_runs import Judged
from leaderboard.rankings.standings import Standings
from leaderboard.reference_runs import MOST, leading, numbers
from leaderboard.views.live import LIVE_SECONDS, OLDER, any_of, named
from leaderboard.views.runs import X_LABELS, address
from scheduler.prepared import Prepared

POINTS = 1000
"""Of all curves together; a picture of ten needs fewer of each."""
ROWS, FEWEST_ROWS = 32, 4
"""Of the tables behind all curves together, and of each at least."""
SUGGESTED = 6


@require_safe
def compare(request: HttpRequest) -> HttpResponse:
    """`?runs=1,2`; what forms send as `?runs=1&runs=2` is led to that. `&paired=1` compares item by item."""
    asked = numbers(request.GET.getlist("runs"))
    canonical = ",".join(map(str, asked))
    if request.GET.getlist("runs") not in ([], [canonical]):
        return redirect(f"{reverse('compare')}{address(request, runs=canonical)}".replace("%2C", ","))
    runs = in_order(asked)
    table_ = standings_of(runs)
    context = {
        "runs": list(zip(range(len(runs)), runs, others(request, runs), strict=True)),
        "gone": [number for number in asked if number not in {run.pk for run in runs}],
        "suggested": suggested(runs, table_),
        "chosen": ",".join(str(run.pk) for run in runs),
        "most": MOST,
        "revision": OLDER if table_ and table_.outdone.is_set() else "",
        **(beside_each_other(request, runs, table_) if len(runs) > 1 else {}),
    }
    return render(request, "leaderboard/compare.html", context)


def in_order(asked: Sequence[int]) -> list[Run]:
    """Return the runs that there are, as asked for. A notebook has no curve of ours."""
    found = {run.pk: run for run in (several(len(asked)).rows(**named(asked)) if asked else ())}
    return [found[number] for number in asked if number in found]


@cache
def several(count: int) -> Prepared[Run]:
    chosen = Run.objects.with_entry().exclude(entry__kind=Entry.Kind.NOTEBOOK).filter(any_of("pk", count)).order_by()
    return Prepared(lambda: chosen)


@cache
def scored(count: int) -> Prepared[Score]:
    return Prepared(lambda: Score.objects.filter(any_of("run", count)).order_by())


def standings_of(runs: Sequence[Run]) -> Standings | None:
    """Return the board of the first run, which all are compared on that are on it."""
    if not runs or runs[0].season_id != runs[0].track.season_id:
        return None
    runs[0].track.season = runs[0].season
    return standings.of(runs[0].track, may_lag=True)


def beside_each_other(request: HttpRequest, runs: Sequence[Run], board: Standings | None) -> dict[str, Any]:
    view, rows_each = View.asked(request.GET), max(FEWEST_ROWS, ROWS // len(runs))
    curves = curves_of(runs)
    drawn = panels([Shown(run, curves[run.pk], f"run {run.pk}", number) for number, run in enumerate(runs)], view)
    differ, alike = comparison.differences(runs)
    here = [run for run in runs if board and run.track_id == runs[0].track_id]
    found = comparison.pairs(here, board)
    rows = comparison.score_rows(runs, scored(len(runs)).rows(**named([run.pk for run in runs])))
    link = request.build_absolute_uri(f"{reverse('compare')}?runs={','.join(str(run.pk) for run in runs)}")
    return {
        "view": view,
        "abscissae": [(name, X_LABELS[name], address(request, x=name)) for name in curve_svg.ABSCISSAE],
        "smoothings": SMOOTHINGS,
        "main_panel": drawn[0] if drawn else None,
        "small_panels": drawn[1:],
        "numbers": [(number, run, table(curves[run.pk], rows_each)) for number, run in enumerate(runs)],
        "differ": differ,
        "alike": alike,
        "pairs": found,
        "elsewhere": len(here) < len(runs),
        "scores": rows,
        "paired": paired_comparison.against_first(runs) if "paired" in request.GET else None,
        "paired_address": address(request, paired="1"),
        "most_paired": paired_comparison.MOST,
        "markdown": comparison.markdown(runs, differ, found, rows, link),
    }


def curves_of(runs: Sequence[Run]) -> dict[int, curve_svg.Curve]:
    return curve_svg.curves_of(runs, min(curve_svg.PICTURE_POINTS, POINTS // max(len(runs), 1)))


def others(request: HttpRequest, runs: Sequence[Run]) -> list[str]:
    """Return for each run the address of this page without it."""
    left = [",".join(str(other.pk) for other in runs if other is not run) for run in runs]
    return [address(request, runs=rest).replace("%2C", ",") for rest in left]


def suggested(runs: Sequence[Run], board: Standings | None) -> list[tuple[Judged, str]]:
    """Return what is worth adding: the baseline's run, the leader's, then the board from above."""
    if board is None:
        return []
    there = {run.pk for run in runs}
    best = leading(board)
    rows = [row for row in board.rows if row.is_baseline] + ([best] if best else []) + list(board.rows)
    found: dict[int, tuple[Judged, str]] = {}
    for row in rows:
        if row.latest.run not in there:
            found.setdefault(row.entry, (row.latest, "baseline" if row.is_baseline else ""))
        if len(found) == SUGGESTED:
            break
    return list(found.values())


def curves_etag(request: HttpRequest) -> str:
    asked = numbers(request.GET.getlist("runs"))
    known = Run.objects.filter(pk__in=asked).values_list("pk", "revision", "state").order_by("pk")
    return f'"{".".join(f"{run}-{revision}-{state}" for run, revision, state in known)}"'


@require_safe
@condition(etag_func=curves_etag)
def curves(request: HttpRequest) -> JsonResponse:
    """The curves of `?runs=1,2` as columns: for the scripts of this page and of a run's."""
    runs = in_order(numbers(request.GET.getlist("runs")))
    found = curves_of(runs)
    return JsonResponse(
        {
            "parts": {},
            "curves": {run.pk: script_columns(run, found[run.pk], whole=False) for run in runs},
            "live": [run.pk for run in runs if not run.is_over],
            "revision": "",
            "wait": 0 if all(run.is_over for run in runs) else LIVE_SECONDS,
        }
    )
