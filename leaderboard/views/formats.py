"""Other formats of a page at the same address: `?format=csv`, `?format=json` and `?embed=1`.

`urls.py` wraps a page in `with_formats`. Units of the tables are in `docs/reference/api.md`.
"""

from __future__ import annotations

import csv
import io
import json
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import wraps
from itertools import chain
from statistics import fmean
from typing import Any

from csp.decorators import csp_replace
from django.http import HttpRequest, HttpResponse
from django.http.response import HttpResponseBase
from django.shortcuts import get_object_or_404
from django.utils import timezone
from django.views.decorators.clickjacking import xframe_options_exempt
from django.views.decorators.http import conditional_page, require_safe

from leaderboard.board.query import parse_axis
from leaderboard.models import Entry, Run, Score, Standing, StandingsTable, Track
from leaderboard.models.standings import get_entry_name
from leaderboard.pool_nodes import find_working_nodes
from leaderboard.rankings.standings_store import SIZE_FIELDS, load_standings
from leaderboard.reference_runs import parse_run_ids
from leaderboard.schedule.start_estimates import estimate_starts
from scheduler.rate_limits import build_rate_limit_response

View = Callable[..., HttpResponseBase]
FORMULA_PREFIXES = ("=", "+", "-", "@", "\t", "\r")
"""A spreadsheet takes a cell that begins so for a formula; titles are untrusted."""


@dataclass(frozen=True)
class Table:
    """Rows by column name; a column that a row lacks is empty in it."""

    name: str
    """Name of the file."""
    rows: Sequence[Mapping[str, Any]]

    @property
    def columns(self) -> list[str]:
        return list(dict.fromkeys(column for row in self.rows for column in row))


def write_csv(table: Table) -> str:
    text = io.StringIO()
    out = csv.writer(text, lineterminator="\n")
    out.writerow(table.columns)
    out.writerows([escape_cell(row.get(column)) for column in table.columns] for row in table.rows)
    return text.getvalue()


def escape_cell(value: Any) -> Any:
    value = " ".join(map(str, value)) if isinstance(value, list) else value
    if isinstance(value, str):
        return f"'{value}" if value.startswith(FORMULA_PREFIXES) else value
    return "" if value is None else value


def write_json(table: Table) -> str:
    return json.dumps({"table": table.name, "rows": table.rows}, indent=1, allow_nan=False)


FORMATS = {"csv": (write_csv, "text/csv; charset=utf-8"), "json": (write_json, "application/json")}


def with_formats(page: View, *, table: Callable[..., Table] | None = None, embed: View | None = None) -> View:
    """Return a view that sends the page, or its table or its chart if the query string selects one."""

    framed = embed and xframe_options_exempt(csp_replace({"frame-ancestors": ["*"]})(embed))

    @wraps(page)
    def respond(request: HttpRequest, **place: Any) -> HttpResponseBase:
        if framed and request.GET.get("embed") == "1":
            return framed(request, **place)
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


def export_board(request: HttpRequest) -> Table:
    track = Track.objects.default()
    return build_board_table(load_standings(track, parse_axis(request.GET))) if track else Table("board", [])


def export_track(request: HttpRequest, slug: str) -> Table:
    track = get_object_or_404(Track.objects.select_related("season"), slug=slug)
    return build_board_table(load_standings(track, parse_axis(request.GET)))


def build_board_table(table: StandingsTable) -> Table:
    """A row for each entry, best first, its multiplier on the table's axis; scores are means over its runs."""
    rows = list(table.rows.select_related("entry")) if table.pk else []
    scores = load_scores(run_id for row in rows for run_id in row.run_ids)
    lines = [build_line(row, table) | mean_scores(scores[run_id] for run_id in row.run_ids) for row in rows]
    return Table(f"board-{table.track.slug}-{table.axis}", lines)


def build_line(row: Standing, table: StandingsTable) -> dict[str, Any]:
    entry = row.entry
    return {
        "rank": row.rank,
        "entry": entry.pk,
        "name": get_entry_name(entry.pk),
        "title": entry.title,
        "author": entry.author,
        "architecture": entry.architecture,
        "is_baseline": row.is_baseline,
        "multiplier": row.multiplier,
        "multiplier_low": row.multiplier_low,
        "multiplier_high": row.multiplier_high,
        "verdict": row.verdict or None,
        "tied_with": [get_entry_name(entry_id) for entry_id in row.ties],
        "axis": table.axis,
        "runs": row.run_count,
        "bits_per_byte": row.bits_per_byte,
        "bits_per_byte_stderr": row.bits_per_byte_stderr,
        **{name: getattr(row, name) for name in SIZE_FIELDS},
        "train_flops": row.train_flops,
        "train_seconds": row.train_seconds,
        "tokens_per_second": row.tokens_per_second,
        "trust": row.trust,
        "date": row.finished_at.isoformat() if row.finished_at else None,
        "repository": entry.public_repository,
        "sha": entry.sha,
    }


def export_entry(request: HttpRequest, entry_id: int) -> Table:
    entry = get_object_or_404(Entry, pk=entry_id)
    return build_runs_table(list(Run.objects.with_entry().filter(entry=entry).order_by("pk")), f"entry-{entry.pk}")


def export_comparison(request: HttpRequest) -> Table:
    """The runs of `?runs=1,2`, in the order named; numbers that are no run's are left out."""
    run_ids = parse_run_ids(request.GET.getlist("runs"))
    found = Run.objects.with_entry().in_bulk(run_ids)
    return build_runs_table([found[run_id] for run_id in run_ids if run_id in found], "compare")


def build_runs_table(runs: Sequence[Run], name: str) -> Table:
    """A row for each run, every score with its standard error beside it."""
    scores = load_scores(run.pk for run in runs)
    return Table(name, [{**run.to_dict(), **score_columns(scores[run.pk])} for run in runs])


def export_run(request: HttpRequest, run_id: int) -> Table:
    """A row for each score."""
    run = get_object_or_404(Run, pk=run_id)
    return Table(f"run-{run.pk}-scores", [{"run": run.pk, **score.to_dict()} for score in run.scores.all()])


def export_queue(request: HttpRequest) -> Table:
    """What runs, then what waits, in the order of the queue."""
    live = [{**run.to_dict(), "position": None, "leaves_at": None} for run in Run.objects.live().with_job()]
    waiting = [
        {
            **line.run.to_dict(),
            "reason": line.reason,
            "position": line.position,
            "leaves_at": line.begins_at.isoformat() if line.begins_at else None,
        }
        for line in estimate_starts(list(Run.objects.waiting().with_job()), timezone.now())
    ]
    return Table("queue", [*live, *waiting])


def export_nodes(request: HttpRequest) -> Table:
    return Table(
        "nodes",
        [
            {
                "id": node.pk,
                "name": node.name,
                "state": node.state,
                "trusted": node.trusted,
                "labels": node.labels,
                "sponsor": getattr(getattr(node.owner, "sponsor", None), "name", "") if node.shown else "",
                "last_seen": node.last_seen.isoformat() if node.last_seen else None,
                "jobs": len(node.now),  # type: ignore[attr-defined]
            }
            for node in find_working_nodes()
        ],
    )


# --- scores ----------------------------------------------------------------------------------------------------------


def load_scores(run_ids: Iterable[int]) -> dict[int, list[Score]]:
    """Return scores by run, those without any included. One query."""
    found: dict[int, list[Score]] = defaultdict(list)
    for score in Score.objects.filter(run__in=list(run_ids)).exclude(name="bits_per_byte").order_by("name"):
        found[score.run_id].append(score)
    return found


def score_columns(scores: Iterable[Score]) -> dict[str, float | None]:
    return {
        name: value
        for score in scores
        for name, value in ((score.name, score.value), (f"{score.name}_stderr", score.stderr))
    }


def mean_scores(groups: Iterable[Iterable[Score]]) -> dict[str, float]:
    """Return each score's mean over the runs that have it."""
    values: dict[str, list[float]] = defaultdict(list)
    for score in chain.from_iterable(groups):
        values[score.name].append(score.value)
    return {name: fmean(found) for name, found in values.items()}
