"""Runs worth comparing a run with: the baseline's and the record's with the same budget."""

from __future__ import annotations

from dataclasses import dataclass

from leaderboard.models import Run, StandingsTable
from leaderboard.rankings.eligible_runs import ScoredRun
from leaderboard.rankings.standings import TrackStandings, compute_standings

MAX_RUNS = 10  # in one chart


@dataclass(frozen=True)
class ReferenceRun:
    run: int
    label: str
    color: str
    title: str


def find_reference_runs(run: Run, table: StandingsTable | None) -> list[ReferenceRun]:
    """Return the runs to compare with, none of the run's own entry. One query."""
    if table is None or table.baseline_id is None:
        return []
    standings = compute_standings(table.track, entries=[table.leader_id])
    references = []
    if baseline := find_same_budget_run(table.baseline_id, run, standings):
        references.append(ReferenceRun(baseline.run, "baseline", "baseline", baseline.title))
    if best := find_same_budget_run(table.leader_id, run, standings):
        row = standings.get_row(table.leader_id)
        label = "record" if row and row.trust is Run.Trust.RECORD else "best so far"
        references.append(ReferenceRun(best.run, label, "record", best.title))
    return references


def find_same_budget_run(entry: int | None, run: Run, standings: TrackStandings) -> ScoredRun | None:
    """Return the entry's eligible run of this budget, with the same seed if there is one."""
    if entry is None or entry == run.entry_id:
        return None
    same = standings.runs_by_budget.get((entry, run.budget), [])
    return min(same, key=lambda other: (other.seed != run.seed, other.run), default=None)


def parse_run_ids(values: list[str], limit: int = MAX_RUNS) -> list[int]:
    """Parse the run ids of a query string, `runs=1,2&runs=3`: each once, in order, without invalid ones."""
    words = [word.strip() for text in values for word in text.split(",")]
    return list(dict.fromkeys(int(word) for word in words if word.isdecimal() and len(word) < 19))[:limit]
