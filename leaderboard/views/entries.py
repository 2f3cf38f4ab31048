"""The page of an entry."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import Any

from django.http import HttpRequest, HttpResponse, JsonResponse
from django.shortcuts import get_object_or_404, render
from django.views.decorators.http import condition, require_safe

from leaderboard import contributors
from leaderboard.board.query import parse_axis
from leaderboard.board.scales import AtScale, draw_scales, load_scales
from leaderboard.charts.multiplier_charts import build_whisker, scale_of_row
from leaderboard.graph_comparison import build_graph_view
from leaderboard.models import Entry, Run, Standing, StandingsTable
from leaderboard.models.standings import get_entry_name
from leaderboard.rankings.standings_store import load_results, load_standings, refresh_standings
from leaderboard.submissions import review, smoke_tests, stations
from leaderboard.submissions import run_estimates as estimates
from leaderboard.views.board import build_results_response, results_etag
from scheduler.models import Event
from trainer.scoring.multiplier import AXES

MAX_RUNS = 200


@require_safe
def entry(request: HttpRequest, entry_id: int) -> HttpResponse:
    related = ("track__season", "smoke_job", "pull_request", "duplicate_of", "waits_for", "family", "ruling")
    entry = get_object_or_404(Entry.objects.select_related(*related), pk=entry_id)
    table = load_standings(entry.track, parse_axis(request.GET))
    rows = load_rows(table, entry)
    runs = list(entry.runs.select_related("entry", "track").order_by("-created_at")[:MAX_RUNS])
    at_scales = load_scales(table, entry.pk) if any(run.state == Run.State.FINISHED for run in runs) else []
    context = {
        "entry": entry,
        "runs": runs,
        "latest": next((run for run in runs if run.state != Run.State.CANCELLED), None),
        "own_failures": count_own_failures(runs),
        "groups": group_runs(runs, at_scales),
        "gains": draw_scales(at_scales),
        "changes": None if entry.kind == Entry.Kind.MAIN else review.get_changes(entry),
        "compare": build_comparison_link(table, entry, rows),
        "axes": AXES,
        "standings": table,
        **build_row_context(rows.get(entry.pk)),
        "graph": build_graph_view(entry),
        "smoking": smoke_tests.is_running(entry),
        "estimate": estimates.estimate_run(entry) if estimates.is_before_start(entry) else None,
        "stations": stations.list_stations(entry),
        "ancestors": contributors.list_ancestors(entry),
        "proposed_ancestor": contributors.propose_ancestor(entry),
        "descendants": contributors.list_descendants(entry)[:MAX_RUNS],
        "events": list(Event.objects.about(entry)),
    }
    return render(request, "leaderboard/entry.html", context)


def count_own_failures(runs: Sequence[Run]) -> int:
    """Return how many runs with the whole budget ended by the model's fault: started runs, whose seeds count too."""
    return sum(
        run.state == Run.State.FAILED and run.cause == "model" and run.budget == run.track.budget for run in runs
    )


def load_rows(table: StandingsTable, entry: Entry) -> dict[int, Standing]:
    """Return the rows of the entry, the baseline and the leader, by entry. One query."""
    if table.pk is None:
        return {}
    rows = table.rows.filter(entry__in=[entry.pk, table.baseline_id, table.leader_id]).select_related("entry")
    return {row.entry_id: row for row in rows.defer("ties")}


def group_runs(runs: Sequence[Run], at_scales: Sequence[AtScale]) -> list[dict[str, Any]]:
    """Return the runs by track and budget, the largest budget first."""
    groups: dict[tuple[int, str], list[Run]] = defaultdict(list)
    for run in runs:
        groups[run.track_id, run.budget].append(run)
    estimates = {at.budget: at.estimate for at in at_scales}
    rows = [
        {"part": own[0].part, "runs": own, "estimate": estimates.get(budget)} for (_, budget), own in groups.items()
    ]
    return sorted(rows, key=lambda group: -group["part"])


def build_comparison_link(table: StandingsTable, entry: Entry, rows: dict[int, Standing]) -> dict[str, str]:
    """Return the runs and names for the link to `compare`; empty without anything to compare with."""
    own, leader = rows.get(entry.pk), rows.get(table.leader_id or 0)
    others = {
        "the record": leader if leader and leader.is_record else None,
        "the baseline": rows.get(table.baseline_id or 0),
    }
    compared = {name: row for name, row in others.items() if row and row is not own}
    if own is None or not compared:
        return {}
    runs = [row.latest_run_id for row in [own, *compared.values()]]
    return {"runs": ",".join(map(str, runs)), "with": " and ".join(compared)}


def build_row_context(row: Standing | None) -> dict[str, Any]:
    scale = scale_of_row(row) if row else None
    return {"row": row, "scale": scale, "whisker": build_whisker(row, scale) if row else None}


@require_safe
@condition(etag_func=results_etag)
def entry_results(request: HttpRequest, entry_id: int) -> JsonResponse:
    """The track's results file with the entry's own multiplier."""
    entry = get_object_or_404(Entry.objects.select_related("track__season"), pk=entry_id)
    axis = parse_axis(request.GET)
    table = refresh_standings(entry.track, axis)
    row = table.get_row(entry.pk)
    estimate = row.estimate_dict(table) if row else None
    content = {"entry": get_entry_name(entry.pk), "estimate": estimate, **load_results(entry.track, axis)}
    return build_results_response(content)
