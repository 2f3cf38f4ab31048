"""Numbers of the board's charts, stored with the standings: the ladder, the frontier and the scale of the intervals."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence
from itertools import islice
from statistics import fmean, geometric_mean

import numpy as np
from typing_extensions import TypedDict

from leaderboard.rankings.eligible_runs import ScoredRun, get_compute
from leaderboard.rankings.standings import EntryStanding, TrackStandings

MAX_LADDER_ENTRIES = 100
MAX_FRONTIER_ENTRIES = 300
CURVE_POINTS = 60


class LadderRunDict(TypedDict):
    run: int
    title: str
    budget: str
    seed: int
    bits_per_byte: float
    compute: float


class RungDict(TypedDict):
    budget: str
    part: float | None
    """Share of the track's budget; None for a budget that is no rung."""
    compute: float
    runs: int
    mean: float
    spread: float | None
    """Standard deviation between seeds; None for one run."""
    fitted: float | None


class LadderEntryDict(TypedDict):
    entry: int
    title: str
    compute: float
    loss: float
    multiplier: float | None


class MultiplierRangeDict(TypedDict):
    count: int
    lowest: float
    highest: float
    lowest_end: float
    highest_end: float


class ChartData(TypedDict):
    runs: list[LadderRunDict]
    """The baseline's, smallest first."""
    rungs: list[RungDict]
    curve: list[tuple[float, float]]
    """Compute and loss along the fitted curve."""
    entries: list[LadderEntryDict]
    range: MultiplierRangeDict | None
    begins_at: float | None
    """Unix time at which the baseline's first run was scored."""
    others: list[tuple[float, float]]
    """Unix time and multiplier of the best entries without a record."""


def build_chart_data(standings: TrackStandings) -> ChartData:
    ladder = [run for run in standings.ladder_runs if get_compute(run, standings.axis)]
    times = [run.finished_at.timestamp() for run in standings.ladder_runs if run.finished_at]
    return {
        "runs": [
            {
                "run": run.run,
                "title": run.title,
                "budget": run.budget,
                "seed": run.seed,
                "bits_per_byte": run.bits_per_byte,
                "compute": get_compute(run, standings.axis) or 1.0,
            }
            for run in ladder
        ],
        "rungs": build_rungs(standings, ladder),
        "curve": sample_curve(standings),
        "entries": list(islice(list_ladder_entries(standings.rows), MAX_LADDER_ENTRIES)),
        "range": find_multiplier_range(standings.rows),
        "begins_at": min(times, default=None),
        "others": list(islice(list_other_entries(standings.rows), MAX_FRONTIER_ENTRIES)),
    }


def build_rungs(standings: TrackStandings, ladder: Sequence[ScoredRun]) -> list[RungDict]:
    runs: dict[str, list[ScoredRun]] = defaultdict(list)
    for run in ladder:
        runs[run.budget].append(run)
    return sorted((build_rung(standings, found) for found in runs.values()), key=lambda rung: rung["compute"])


def build_rung(standings: TrackStandings, runs: Sequence[ScoredRun]) -> RungDict:
    losses, budget = [run.bits_per_byte for run in runs], runs[0].budget
    compute = geometric_mean(get_compute(run, standings.axis) or 1.0 for run in runs)
    fit = standings.comparison.ladder if standings.comparison else None
    return {
        "budget": budget,
        "part": 1.0 if budget == standings.track.budget else standings.track.rungs().get(budget),
        "compute": compute,
        "runs": len(runs),
        "mean": fmean(losses),
        "spread": float(np.std(losses, ddof=1)) if len(losses) > 1 else None,
        "fitted": float(fit.loss_at(np.asarray(math.log(compute / fit.full)))) if fit else None,
    }


def sample_curve(standings: TrackStandings) -> list[tuple[float, float]]:
    """Return points of the fitted curve; none without a slope."""
    if standings.comparison is None or standings.comparison.ladder.degree == 0:
        return []
    ladder = standings.comparison.ladder
    xs = np.linspace(float(ladder.lowest), float(ladder.highest), CURVE_POINTS)
    return list(zip((ladder.full * np.exp(xs)).tolist(), ladder.loss_at(xs).tolist(), strict=True))


def list_ladder_entries(rows: Sequence[EntryStanding]) -> list[LadderEntryDict]:
    return [
        {
            "entry": row.entry,
            "title": row.latest.title,
            "compute": row.estimate.compute,
            "loss": row.estimate.loss or row.bits_per_byte,
            "multiplier": row.estimate.cm,
        }
        for row in rows
        if not row.is_baseline and row.estimate and row.estimate.compute
    ]


def find_multiplier_range(rows: Sequence[EntryStanding]) -> MultiplierRangeDict | None:
    estimated = [(row.estimate, row.estimate.cm) for row in rows if row.estimate and row.estimate.cm]
    if not estimated:
        return None
    multipliers = [multiplier for _, multiplier in estimated]
    return {
        "count": len(estimated),
        "lowest": min(multipliers),
        "highest": max(multipliers),
        "lowest_end": min(multiplier if estimate.low is None else estimate.low for estimate, multiplier in estimated),
        "highest_end": max(
            multiplier if estimate.high is None else min(estimate.high, 1e9) for estimate, multiplier in estimated
        ),
    }


def list_other_entries(rows: Sequence[EntryStanding]) -> list[tuple[float, float]]:
    return [
        (scored_at.timestamp(), row.estimate.cm)
        for row in rows
        if not row.is_baseline and not row.latest.broke_record
        if row.estimate and row.estimate.cm and (scored_at := row.finished_at)
    ]
