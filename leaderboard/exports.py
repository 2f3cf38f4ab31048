"""The tables of the pages as plain rows, with every score in them: for spreadsheets and scripts.

Each function returns the rows of one page; `csv` and `json` write them. Units are in `docs/api.md`.
"""

from __future__ import annotations

import io
import json as javascript
from collections.abc import Iterable, Mapping, Sequence
from csv import writer
from dataclasses import dataclass
from typing import Any

from django.utils import timezone

from leaderboard.models import Entry, Run, Score
from leaderboard.rankings.eligible_runs import name_of
from leaderboard.rankings.standings import Row, Standings
from leaderboard.schedule.start_estimates import departures
from leaderboard.views.live import with_job
from leaderboard.views.pool import nodes_at_work

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


def csv(table: Table) -> str:
    text = io.StringIO()
    out = writer(text, lineterminator="\n")
    out.writerow(table.columns)
    out.writerows([cell(row.get(column)) for column in table.columns] for row in table.rows)
    return text.getvalue()


def cell(value: Any) -> Any:
    """Return a value as a spreadsheet may have it."""
    if isinstance(value, str):
        return f"'{value}" if value.startswith(FORMULA) else value
    return "" if value is None else " ".join(map(str, value)) if isinstance(value, list) else value


def json(table: Table) -> str:
    return javascript.dumps({"table": table.name, "rows": table.rows}, indent=1, allow_nan=False)


# --- the pages' tables -----------------------------------------------------------------------------------------------


def board(standings: Standings) -> Table:
    """A row for each entry, best first, its multiplier on the standings' axis; scores are means over its runs."""
    known = scores_of(run.run for row in standings.rows for run in row.runs)
    rows = [
        {**standing(row, standings), **means([known.get(run.run, []) for run in row.runs])} for row in standings.rows
    ]
    return Table(f"board-{standings.track}-{standings.axis}", rows)


def standing(row: Row, standings: Standings) -> Line:
    estimate, latest = row.estimate, row.latest
    return {
        "rank": estimate.rank if estimate else None,
        "entry": row.entry,
        "name": name_of(row.entry),
        "title": latest.title,
        "author": latest.author,
        "architecture": latest.architecture,
        "is_baseline": row.is_baseline,
        "multiplier": estimate.cm if estimate else None,
        "multiplier_low": estimate.low if estimate else None,
        "multiplier_high": estimate.high if estimate else None,
        "verdict": estimate.verdict.value if estimate else None,
        "tied_with": list(estimate.tied_with) if estimate else [],
        "axis": standings.axis,
        "runs": len(row.runs),
        "bits_per_byte": row.bits_per_byte,
        "bits_per_byte_stderr": row.stderr,
        "parameters": latest.parameters,
        "train_flops": row.flops,
        "train_seconds": row.seconds,
        "tokens_per_second": row.tokens_per_second,
        "trust": str(row.trust.value),
        "date": latest.finished_at.isoformat() if latest.finished_at else None,
        "repository": latest.public_repository,
        "sha": latest.sha,
    }


def of_runs(runs: Sequence[Run], name: str) -> Table:
    """A row for each run, every score with its standard error beside it. The runs come from `with_entry()`."""
    known = scores_of(run.pk for run in runs)
    return Table(name, [{**run.to_dict(), **columns_of(known.get(run.pk, []))} for run in runs])


def of_entry(entry: Entry) -> Table:
    return of_runs(list(Run.objects.with_entry().filter(entry=entry).order_by("pk")), f"entry-{entry.pk}")


def of_run(run: Run) -> Table:
    """A row for each score."""
    return Table(f"run-{run.pk}-scores", [{"run": run.pk, **score.to_dict()} for score in run.scores.all()])


def queue() -> Table:
    """What runs, then what waits, in the order of the queue."""
    live: list[Line] = [{**run.to_dict(), "position": None, "leaves_at": None} for run in with_job(Run.objects.live())]
    waiting = [
        {
            **line.run.to_dict(),
            "reason": line.reason,
            "position": line.position,
            "leaves_at": line.leaves_at.isoformat() if line.leaves_at else None,
        }
        for line in departures(list(with_job(Run.objects.waiting())), timezone.now())
    ]
    return Table("queue", [*live, *waiting])


def nodes() -> Table:
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
            for node in nodes_at_work()
        ],
    )


# --- scores ----------------------------------------------------------------------------------------------------------


def scores_of(runs: Iterable[int]) -> dict[int, list[Score]]:
    """Return the scores of runs, by run. One query."""
    found: dict[int, list[Score]] = {}
    for score in Score.objects.filter(run__in=list(runs)).order_by("name"):
        found.setdefault(score.run_id, []).append(score)
    return found


def columns_of(scores: Iterable[Score]) -> dict[str, float | None]:
    """Return the scores as columns; those that stand on the run itself come from there."""
    found: dict[str, float | None] = {}
    for score in scores:
        if score.name != "bits_per_byte":
            found[score.name] = score.value
            found[f"{score.name}_stderr"] = score.stderr
    return found


def means(groups: Sequence[Iterable[Score]]) -> dict[str, float]:
    """Return each score's mean over the runs that have it."""
    values: dict[str, list[float]] = {}
    for score in (score for scores in groups for score in scores if score.name != "bits_per_byte"):
        values.setdefault(score.name, []).append(score.value)
    return {name: sum(found) / len(found) for name, found in values.items()}
