"""An entry's multiplier at every scale that it was trained at, since gains shrink with scale."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain
from statistics import fmean, geometric_mean
from typing import Any, cast

from leaderboard import formatting
from leaderboard.charts.curve_svg import Tick, pad_range
from leaderboard.charts.multiplier_charts import MultiplierScale, get_ends
from leaderboard.models import StandingsTable
from leaderboard.models.standings import get_entry_name
from leaderboard.rankings.eligible_runs import EXCLUDED_TRUST, ScoredRun, get_compute, to_record
from leaderboard.rankings.standings import TrackStandings, compute_standings
from trainer.scoring.multiplier import Axis, EntryMultiplier, ResultsError, compare_entries, parse_results


@dataclass(frozen=True)
class AtScale:
    """An entry's runs with one budget."""

    budget: str
    name: str
    """The part of the track's budget: 1/4, 1, 7."""
    runs: tuple[ScoredRun, ...]
    amount: float
    """Compute on the axis, geometric mean over the runs."""
    estimate: EntryMultiplier | None

    @property
    def bits_per_byte(self) -> float:
        return fmean(run.bits_per_byte for run in self.runs)


def load_scales(table: StandingsTable, entry: int) -> list[AtScale]:
    """Return the entry's scales, smallest first: eligible runs, and all reliable ones of other budgets."""
    standings = compute_standings(table.track, cast("Axis", table.axis), entries=[entry])
    runs: dict[int, dict[str, list[ScoredRun]]] = defaultdict(lambda: defaultdict(list))
    for run in [*standings.eligible, *find_runs_of_other_budgets(standings)]:
        if get_compute(run, standings.axis):
            runs[run.entry][run.budget].append(run)
    ladder = [run for rung in runs[standings.baseline].values() for run in rung] if standings.baseline else []
    return sorted((build_scale(standings, ladder, own) for own in runs[entry].values()), key=lambda at: at.amount)


def find_runs_of_other_budgets(standings: TrackStandings) -> list[ScoredRun]:
    """Return reliable runs that the board leaves out for their budget: monthly ones, rungs of confirmed entries."""
    return [
        run
        for run, _ in standings.left_out
        if run.budget != standings.track.budget
        and run.trust not in EXCLUDED_TRUST
        and not run.lacks_graph
        and not (standings.axis == "seconds" and run.seconds_void)
    ]


def build_scale(standings: TrackStandings, ladder: Sequence[ScoredRun], runs: Sequence[ScoredRun]) -> AtScale:
    amount, budget = geometric_mean(get_compute(run, standings.axis) or 1.0 for run in runs), runs[0].budget
    estimate = estimate_at_scale(standings, ladder, runs, amount)
    return AtScale(budget, name_scale(standings, budget, amount), tuple(runs), amount, estimate)


def name_scale(standings: TrackStandings, budget: str, amount: float) -> str:
    part = 1.0 if budget == standings.track.budget else standings.track.rungs().get(budget)
    part = part or (amount / standings.full if standings.full else None)
    return formatting.rung(float(f"{part:.2g}")) if part else formatting.budget(budget)


def estimate_at_scale(
    standings: TrackStandings, ladder: Sequence[ScoredRun], runs: Sequence[ScoredRun], amount: float
) -> EntryMultiplier | None:
    if standings.comparison is None or standings.baseline in (None, runs[0].entry):
        return None
    assert standings.baseline is not None
    records = [to_record(run) for run in [*ladder, *runs]]
    try:
        comparison = compare_entries(parse_results(records), get_entry_name(standings.baseline), standings.axis, amount)
        return comparison[get_entry_name(runs[0].entry)]
    except ResultsError:
        return None


def draw_scales(scales: Sequence[AtScale]) -> dict[str, Any] | None:
    """Draw multipliers over scale; None without any multiplier."""
    estimated = [(at, at.estimate, at.estimate.cm) for at in scales if at.estimate and at.estimate.cm]
    if not estimated:
        return None
    heights = MultiplierScale.around(1.0, *chain.from_iterable(get_ends(estimate) for _, estimate, _ in estimated))
    left, right = pad_range(*(math.log(at.amount) for at, _, _ in estimated))

    def mark(at: AtScale, estimate: EntryMultiplier, multiplier: float) -> dict[str, Any]:
        y, low, high = (round(100 - heights.at(value), 2) for value in (multiplier, *get_ends(estimate)))
        x = round(100 * (math.log(at.amount) - left) / (right - left), 2)
        title = f"{at.name} of the budget, {formatting.budget(at.budget)}: {multiplier:.3f}, {len(at.runs)} runs"
        return {"x": x, "y": y, "low": low, "high": high, "label": f"{multiplier:.3f}", "title": title}

    marks = [mark(*scale) for scale in estimated]
    return {
        "marks": marks,
        "line": "M" + "L".join(f"{mark['x']:g} {mark['y']:g}" for mark in marks) if len(marks) > 1 else "",
        "one": round(100 - heights.one, 2),
        "x_ticks": [Tick(mark["x"], at.name) for mark, (at, _, _) in zip(marks, estimated, strict=True)],
        "y_ticks": [Tick(round(100 - tick.at, 2), tick.label) for tick in heights.ticks],
        "summary": "Multiplier by scale: " + ", ".join(mark["title"] for mark in marks) + ".",
    }
