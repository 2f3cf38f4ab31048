"""Which runs are worth laying beside a run: the baseline's and the record's with the same budget."""

from __future__ import annotations

from dataclasses import dataclass

from leaderboard.models import Run
from leaderboard.rankings.eligible_runs import Judged
from leaderboard.rankings.standings import Row, Standings

MOST = 10
"""Runs in one picture."""


@dataclass(frozen=True)
class Beside:
    """A run that is offered."""

    run: int
    label: str
    colour: str
    title: str


def offered(run: Run, table: Standings | None) -> list[Beside]:
    """Return them as far as there are any, none of the run's own entry. No query."""
    if table is None:
        return []
    found = []
    baseline = of_entry(table.baseline, run, table)
    if baseline:
        found.append(Beside(baseline.run, "baseline", "baseline", baseline.title))
    best = leading(table)
    if best and (top := of_entry(best.entry, run, table)):
        label = "record" if best.trust is Run.Trust.RECORD else "best so far"
        found.append(Beside(top.run, label, "record", top.title))
    return found


def leading(table: Standings) -> Row | None:
    """Return the record's row; while there is none, the first on the board that is compared at all."""
    return table.once("leading", lambda: first(table))


def first(table: Standings) -> Row | None:
    compared = [row for row in table.rows if not row.is_baseline and row.estimate and row.estimate.cm is not None]
    records = [row for row in compared if row.trust is Run.Trust.RECORD]
    return next(iter(records or compared), None)


def of_entry(entry: int | None, run: Run, table: Standings) -> Judged | None:
    """Return the entry's counted run of this budget, with the same seed if there is one."""
    if entry is None or entry == run.entry_id:
        return None
    same = table.by_budget.get((entry, run.budget), [])
    return min(same, key=lambda other: (other.seed != run.seed, other.run), default=None)


def numbers(given: list[str], most: int = MOST) -> list[int]:
    """Read the numbers of runs from an address, `runs=1,2&runs=3`: each once, in order, what is no number left out."""
    words = [word.strip() for text in given for word in text.split(",")]
    return list(dict.fromkeys(int(word) for word in words if word.isdecimal() and len(word) < 19))[:most]
