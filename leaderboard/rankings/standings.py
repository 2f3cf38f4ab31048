"""Computes where a track's entries stand: multipliers with intervals, from the scored runs of its season.

The arithmetic is `trainer.scoring.multiplier`'s, on the records that anyone can download, so that
`dailytrain multiplier` gives the same digits. Nothing is stored here: `standings_store` stores the rows that pages
read. What decides something (confirmations, the monthly train) calls `compute_standings` directly.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import cached_property
from statistics import fmean, geometric_mean
from typing import Any

from typing_extensions import TypedDict

from leaderboard.models import Run, Track
from leaderboard.models.standings import get_entry_name
from leaderboard.rankings.eligible_runs import (
    RUN_COLUMNS,
    RecordDict,
    ScoredRun,
    get_compute,
    select_eligible_runs,
    to_record,
    void_other_node_classes,
)
from trainer.accounting.budget import Budget
from trainer.scoring.multiplier import (
    Axis,
    EntryMultiplier,
    ResultsError,
    TrackComparison,
    compare_entries,
    parse_results,
)


class LeftOutDict(TypedDict):
    run: int
    reason: str


class ResultsDict(TypedDict):
    """A track's file: `dailytrain multiplier FILE --baseline BASELINE --axis AXIS --full FULL` gives `printed`."""

    track: str
    season: str
    baseline: str | None
    axis: str
    full: float | None
    command: str
    printed: dict[str, Any] | None
    """Output of the command with --json. None where there is no multiplier; `problem` says why."""
    problem: str
    left_out: list[LeftOutDict]
    runs: list[RecordDict]


@dataclass(frozen=True, kw_only=True)
class EntryStanding:
    """One entry's row, as computed."""

    entry: int
    runs: tuple[ScoredRun, ...]
    """Eligible runs with the track's whole budget, latest first; all scored ones where none is eligible."""
    is_baseline: bool
    estimate: EntryMultiplier | None = None
    """None where the track has no multipliers, or the entry is not compared."""
    left_out: str = ""
    """Why none of its runs is eligible; empty if one is."""

    @property
    def latest(self) -> ScoredRun:
        return self.runs[0]

    @cached_property
    def bits_per_byte(self) -> float:
        return fmean(run.bits_per_byte for run in self.runs)

    @property
    def finished_at(self) -> datetime | None:
        return max((run.finished_at for run in self.runs if run.finished_at), default=None)

    @cached_property
    def trust(self) -> Run.Trust:
        return max((Run.Trust(run.trust) for run in self.runs), key=list(Run.Trust).index)


@dataclass(frozen=True, kw_only=True)
class TrackStandings:
    """A track's standings on one axis, as computed."""

    track: Track
    axis: Axis
    full: float | None
    """The track's budget on this axis."""
    baseline: int | None
    eligible: tuple[ScoredRun, ...]
    left_out: tuple[tuple[ScoredRun, str], ...]
    """Scored runs that are not eligible, and why."""
    rows: tuple[EntryStanding, ...]
    comparison: TrackComparison | None
    problem: str
    """Why there are no multipliers; empty where there are."""

    def get_row(self, entry: int | None) -> EntryStanding | None:
        return self.rows_by_entry.get(entry) if entry is not None else None

    @cached_property
    def rows_by_entry(self) -> dict[int, EntryStanding]:
        return {row.entry: row for row in self.rows}

    @cached_property
    def runs_by_budget(self) -> dict[tuple[int, str], list[ScoredRun]]:
        runs: dict[tuple[int, str], list[ScoredRun]] = defaultdict(list)
        for run in self.eligible:
            runs[run.entry, run.budget].append(run)
        return dict(runs)

    @cached_property
    def ladder_runs(self) -> list[ScoredRun]:
        """Return the baseline's eligible runs at all rungs, smallest first."""
        own = [run for run in self.eligible if run.entry == self.baseline]
        return sorted(own, key=lambda run: (get_compute(run, self.axis) or 0, run.seed))

    def count_rung_runs(self) -> int:
        """Return how many runs of the ladder are eligible, at most `seeds` of each rung."""
        rungs = self.track.rungs()
        counts = Counter(run.budget for run in self.ladder_runs if run.budget in rungs)
        return sum(min(count, int(self.track.ladder["seeds"])) for count in counts.values())

    def to_dict(self, command: str) -> ResultsDict:
        return {
            "track": self.track.slug,
            "season": self.track.season.name,
            "baseline": get_entry_name(self.baseline) if self.baseline else None,
            "axis": self.axis,
            "full": self.full,
            "command": command,
            "printed": None if self.comparison is None else dict(self.comparison.to_dict()),
            "problem": self.problem,
            "left_out": [{"run": run.run, "reason": reason} for run, reason in self.left_out],
            "runs": [to_record(run) for run in self.eligible],
        }


def compute_standings(
    track: Track, axis: Axis = "flops", entries: Collection[int | None] | None = None
) -> TrackStandings:
    """Read the track's scored runs and rank its entries. The track has its season selected.

    With `entries`, only these and the baseline are read: multipliers and ratios of two entries do not depend on
    others; ranks, ties and the rows' order do.
    """
    runs = Run.objects.scored(track)
    if entries is not None:
        runs = runs.filter(entry__in={*entries, track.season.baseline_id} - {None})
    return rank_entries(track, load_scored_runs(runs), axis)


def load_scored_runs(runs: Iterable[Run]) -> list[ScoredRun]:
    """Read the columns that standings need of `Run.objects.scored(track)`. One query."""
    rows = runs.values_list(*RUN_COLUMNS.values())  # type: ignore[attr-defined]
    return [ScoredRun(**dict(zip(RUN_COLUMNS, row, strict=True))) for row in rows]


def rank_entries(track: Track, scored: Sequence[ScoredRun], axis: Axis = "flops") -> TrackStandings:
    """Compare scored runs with the ladder of the season's baseline. No query."""
    baseline = track.season.baseline_id
    eligible, left_out = select_eligible_runs(scored, baseline, track.confirmations)
    eligible = void_other_node_classes(eligible, baseline)
    full = find_full_budget(track.budget, [run for run in eligible if run.entry == baseline], axis)
    comparison, problem = compare_with_baseline(eligible, baseline, axis, full)
    return TrackStandings(
        track=track,
        axis=axis,
        full=full,
        baseline=baseline,
        eligible=tuple(eligible),
        left_out=tuple(left_out),
        rows=tuple(build_rows(eligible, left_out, track.budget, baseline, comparison)),
        comparison=comparison,
        problem=problem,
    )


def find_full_budget(text: str, ladder: Sequence[ScoredRun], axis: Axis) -> float | None:
    """Return the track's budget on the axis; for another kind of budget, the geometric mean of the baseline's use."""
    budget = Budget.parse(text)
    if budget.kind == axis:
        return budget.amount
    used = [used for run in ladder if run.budget == text and (used := get_compute(run, axis))]
    return geometric_mean(used) if used else None


def compare_with_baseline(
    runs: Sequence[ScoredRun], baseline: int | None, axis: Axis, full: float | None
) -> tuple[TrackComparison | None, str]:
    """Return the multipliers, or why there are none."""
    if baseline is None:
        return None, "This season has no baseline yet, so there is nothing to compare with."
    if not any(run.entry == baseline for run in runs):
        return None, "The baseline has not arrived yet; multipliers are read off its runs."
    name = get_entry_name(baseline)
    try:
        return compare_entries(parse_results([to_record(run) for run in runs]), name, axis, full), ""
    except ResultsError as error:
        return None, str(error).replace(repr(name), "").replace("  ", " ")


def select_shown_runs(eligible: Sequence[ScoredRun], left_out: Sequence[tuple[ScoredRun, str]]) -> list[ScoredRun]:
    """Return eligible runs, and all runs of an entry without any."""
    known = {(run.entry, run.budget) for run in eligible}
    return [*eligible, *(run for run, _ in left_out if (run.entry, run.budget) not in known)]


def build_rows(
    eligible: Sequence[ScoredRun],
    left_out: Sequence[tuple[ScoredRun, str]],
    budget: str,
    baseline: int | None,
    comparison: TrackComparison | None,
) -> list[EntryStanding]:
    """Return a row for each entry with the whole budget, by rank, multiplier and loss."""
    reasons = {run.run: reason for run, reason in left_out}
    own: dict[int, list[ScoredRun]] = defaultdict(list)
    for run in select_shown_runs(eligible, left_out):
        if run.budget == budget:
            own[run.entry].append(run)
    rows = [
        EntryStanding(
            entry=entry,
            runs=tuple(sorted(found, key=lambda run: -run.run)),
            is_baseline=entry == baseline,
            estimate=comparison.by_name.get(get_entry_name(entry)) if comparison else None,
            left_out=reasons.get(found[0].run, ""),
        )
        for entry, found in own.items()
    ]
    return sorted(rows, key=sort_key)


def sort_key(row: EntryStanding) -> tuple[float, float, float]:
    cm = row.estimate.cm if row.estimate else None
    rank = row.estimate.rank if row.estimate else None
    return math.inf if rank is None else rank, -(cm or 0.0), row.bits_per_byte
