"""The tables of the pages as plain rows, with every score in them: for spreadsheets and scripts.

Each function returns the rows of one page; `csv` and `json` write them. Units are in `docs/api.md`.
"""

from __future__ import annotations

import io
import json
from collections.abc import Iterable, Mapping, Sequence
from csv import writer
from dataclasses import dataclass
from typing import Any

from django.utils import timezone

from leaderboard.models import Entry, Run, Score, Standing, StandingsTable
from leaderboard.models.standings import get_entry_name
from leaderboard.pool_nodes import find_working_nodes
from leaderboard.schedule.start_estimates import estimate_starts

Line = Mapping[str, Any]
FORMULA = ("=", "+", "-", "@", "\t", "\r")
"""What a spreadsheet takes for the start of a formula: titles are strangers' words."""


@dataclass(frozen=True)
class Table:
    """Rows that know their columns by name; a column that a row lacks is empty in it."""

    name: str
    """Of the file."""
    rows: Sequence[Line]

    @property
    def columns(self) -> list[str]:
        return list(dict.fromkeys(column for row in self.rows for column in row))


def write_csv(table: Table) -> str:
    text = io.StringIO()
    out = writer(text, lineterminator="\n")
    out.writerow(table.columns)
    out.writerows([escape_cell(row.get(column)) for column in table.columns] for row in table.rows)
    return text.getvalue()


def escape_cell(value: Any) -> Any:
    """Return a value as a spreadsheet may have it."""
    if isinstance(value, str):
        return f"'{value}" if value.startswith(FORMULA) else value
    return "" if value is None else " ".join(map(str, value)) if isinstance(value, list) else value


def write_json(table: Table) -> str:
    return json.dumps({"table": table.name, "rows": table.rows}, indent=1, allow_nan=False)


# --- the pages' tables -----------------------------------------------------------------------------------------------


def build_board_table(table: StandingsTable) -> Table:
    """A row for each entry, best first, its multiplier on the table's axis; scores are means over its runs."""
    rows = list(table.rows.select_related("entry")) if table.pk else []
    scores = load_scores(run_id for row in rows for run_id in row.run_ids)
    lines = [
        {**standing_line(row, table), **mean_scores([scores.get(run_id, []) for run_id in row.run_ids])} for row in rows
    ]
    return Table(f"board-{table.track.slug}-{table.axis}", lines)


def standing_line(row: Standing, table: StandingsTable) -> Line:
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
        "parameters": row.parameters,
        "train_flops": row.train_flops,
        "train_seconds": row.train_seconds,
        "tokens_per_second": row.tokens_per_second,
        "trust": row.trust,
        "date": row.finished_at.isoformat() if row.finished_at else None,
        "repository": entry.public_repository,
        "sha": entry.sha,
    }


def build_runs_table(runs: Sequence[Run], name: str) -> Table:
    """A row for each run, every score with its standard error beside it. The runs come from `with_entry()`."""
    known = load_scores(run.pk for run in runs)
    return Table(name, [{**run.to_dict(), **score_columns(known.get(run.pk, []))} for run in runs])


def build_entry_table(entry: Entry) -> Table:
    return build_runs_table(list(Run.objects.with_entry().filter(entry=entry).order_by("pk")), f"entry-{entry.pk}")


def build_run_table(run: Run) -> Table:
    """A row for each score."""
    return Table(f"run-{run.pk}-scores", [{"run": run.pk, **score.to_dict()} for score in run.scores.all()])


def build_queue_table() -> Table:
    """What runs, then what waits, in the order of the queue."""
    live: list[Line] = [{**run.to_dict(), "position": None, "leaves_at": None} for run in Run.objects.live().with_job()]
    waiting = [
        {
            **line.run.to_dict(),
            "reason": line.reason,
            "position": line.position,
            "leaves_at": line.leaves_at.isoformat() if line.leaves_at else None,
        }
        for line in estimate_starts(list(Run.objects.waiting().with_job()), timezone.now())
    ]
    return Table("queue", [*live, *waiting])


def build_nodes_table() -> Table:
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


def load_scores(runs: Iterable[int]) -> dict[int, list[Score]]:
    """Return the scores of runs, by run. One query."""
    found: dict[int, list[Score]] = {}
    for score in Score.objects.filter(run__in=list(runs)).order_by("name"):
        found.setdefault(score.run_id, []).append(score)
    return found


def score_columns(scores: Iterable[Score]) -> dict[str, float | None]:
    """Return the scores as columns; those that stand on the run itself come from there."""
    found: dict[str, float | None] = {}
    for score in scores:
        if score.name != "bits_per_byte":
            found[score.name] = score.value
            found[f"{score.name}_stderr"] = score.stderr
    return found


def mean_scores(groups: Sequence[Iterable[Score]]) -> dict[str, float]:
    """Return each score's mean over the runs that have it."""
    values: dict[str, list[float]] = {}
    for score in (score for scores in groups for score in scores if score.name != "bits_per_byte"):
        values.setdefault(score.name, []).append(score.value)
    return {name: sum(found) / len(found) for name, found in values.items()}
