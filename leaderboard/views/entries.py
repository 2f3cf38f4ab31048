"""The page of an entry."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from django.http import HttpRequest, HttpResponse, JsonResponse
from django.shortcuts import get_object_or_404, render
from django.views.decorators.http import condition, require_safe

from leaderboard.board import scales
from leaderboard.board.frontier import records
from leaderboard.board.scales import AtScale
from leaderboard.charts import multiplier_charts as pictures
from leaderboard.job_handlers import smoke_tests
from leaderboard.models import Entry, Run
from leaderboard.rankings import standings
from leaderboard.rankings.eligible_runs import name_of
from leaderboard.rankings.standings import Standings
from leaderboard.submissions import changes
from leaderboard.submissions import run_estimates as estimates
from leaderboard.views.live import NUMBER, about, one, revision_of
from leaderboard.views.results import axis_of, results, results_etag
from scheduler.prepared import Prepared
from trainer.scoring.multiplier import AXES, EntryMultiplier

MOST_RUNS = 200
"""Of one entry, the latest."""
ONE = Prepared(
    lambda: Entry.objects.filter(pk=NUMBER).select_related("track__season", "smoke_job", "pull_request").order_by()
)
RUNS = Prepared(
    lambda: Run.objects.filter(entry=NUMBER).select_related("entry", "track").order_by("-created_at")[:MOST_RUNS]
)


@dataclass(frozen=True)
class Group:
    """An entry's runs with one budget."""

    part: float
    """Of the track's budget."""
    runs: list[Run]
    estimate: EntryMultiplier | None
    """None where it has no multiplier at this scale."""


@require_safe
def entry(request: HttpRequest, entry_id: int) -> HttpResponse:
    found = one(ONE, entry_id)
    table = standings.of(found.track, axis_of(request), may_lag=True)
    runs = RUNS.rows(number=found.pk)
    at_scales = scales.of(table, found.pk)
    context = {
        "entry": found,
        "runs": runs,
        "groups": groups(runs, at_scales),
        "gains": scales.picture(at_scales),
        "changes": None if found.kind == Entry.Kind.MAIN else changes.of(found),
        "compare": beside(table, found),
        "axes": AXES,
        "standings": table,
        **row_of(table, found),
        "smoking": smoke_tests.under_way(found),
        "estimate": estimates.estimate(found) if estimates.is_ahead(found) else None,
        "events": about(found),
        "revision": revision_of(request),
    }
    return render(request, "leaderboard/entry.html", context)


def groups(runs: Sequence[Run], at_scales: Sequence[AtScale]) -> list[Group]:
    """Return the runs by track and budget, the largest budget first, with the multiplier there."""
    found: dict[tuple[int, str], list[Run]] = defaultdict(list)
    for run in runs:
        found[run.track_id, run.budget].append(run)
    estimates = {at.budget: at.estimate for at in at_scales}
    made = [Group(own[0].part, own, estimates.get(budget)) for (_, budget), own in found.items()]
    return sorted(made, key=lambda group: -group.part)


def beside(table: Standings, entry: Entry) -> dict[str, str]:
    """Return the runs to compare it with, as `compare` takes them, and what they are; nothing where there are none."""
    own, best = table.row(entry.pk), records(table)[-1:]
    baseline = table.row(table.baseline) if table.baseline else None
    others = {"the record": best[0].row if best else None, "the baseline": baseline}
    found = {name: row for name, row in others.items() if row and row is not own}
    if own is None or not found:
        return {}
    runs = [row.latest.run for row in [own, *found.values()]]
    return {"runs": ",".join(map(str, runs)), "with": " and ".join(found)}


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
