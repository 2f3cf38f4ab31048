"""An entry's multiplier at every scale it was trained at. Gains shrink with scale: this is where one sees it."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

from leaderboard import formatting
from leaderboard.charts.curve_svg import Tick, padded
from leaderboard.charts.multiplier_charts import Scale, end
from leaderboard.rankings.eligible_runs import NOT_RELIED_ON, Judged, compute, name_of, record
from leaderboard.rankings.standings import Standings
from trainer.scoring.multiplier import EntryMultiplier, ResultsError, compare_entries, parse_results


@dataclass(frozen=True)
class AtScale:
    """One budget at which an entry was trained."""

    budget: str
    name: str
    """Which part of the track's budget: 1/4, 1, 7."""
    runs: tuple[Judged, ...]
    amount: float
    """Compute, in the unit of the axis: the geometric mean over the runs."""
    estimate: EntryMultiplier | None

    @property
    def bits_per_byte(self) -> float:
        return math.fsum(run.bits_per_byte for run in self.runs) / len(self.runs)


@dataclass(frozen=True)
class Mark:
    """A multiplier with its interval, in per cent of the picture from the top left."""

    x: float
    y: float
    low: float
    high: float
    label: str
    title: str


@dataclass(frozen=True)
class ScalePicture:
    marks: list[Mark]
    line: str
    one: float
    """Height of the baseline's line."""
    x_ticks: list[Tick]
    y_ticks: list[Tick]
    summary: str


def of(standings: Standings, entry: int) -> list[AtScale]:
    """Return the entry's scales, smallest first: runs that count, and at other budgets all that can be relied on."""
    own = standings.once("runs at all scales", lambda: by_entry(standings))
    found: dict[str, list[Judged]] = defaultdict(list)
    for run in own.get(entry, ()):
        found[run.budget].append(run)
    rungs = own.get(standings.baseline, [])
    return sorted((at_scale(standings, rungs, runs) for runs in found.values()), key=lambda at: at.amount)


def by_entry(standings: Standings) -> dict[int | None, list[Judged]]:
    found: dict[int | None, list[Judged]] = defaultdict(list)
    for run in [*standings.counted, *elsewhere(standings)]:
        if compute(run, standings.axis):
            found[run.entry].append(run)
    return dict(found)


def elsewhere(standings: Standings) -> list[Judged]:
    """Return runs that the board leaves out for another reason than that they prove nothing: the monthly train's, and
    those with another budget of an entry that is judged by its confirmation alone."""
    is_void = "flops_void" if standings.axis == "flops" else "seconds_void"
    return [
        run
        for run, _ in standings.left_out
        if run.budget != standings.budget and run.trust not in NOT_RELIED_ON and not getattr(run, is_void)
    ]


def at_scale(standings: Standings, rungs: Sequence[Judged], runs: Sequence[Judged]) -> AtScale:
    amounts = [math.log(compute(run, standings.axis) or 1.0) for run in runs]
    amount = math.exp(math.fsum(amounts) / len(amounts))
    budget = runs[0].budget
    return AtScale(
        budget, part_of(standings, budget, amount), tuple(runs), amount, read(standings, rungs, runs, amount)
    )


def part_of(standings: Standings, budget: str, amount: float) -> str:
    part = 1.0 if budget == standings.budget else standings.rungs.get(budget)
    part = part or (amount / standings.full if standings.full else None)
    return formatting.rung(float(f"{part:.2g}")) if part else formatting.budget(budget)


def read(
    standings: Standings, rungs: Sequence[Judged], runs: Sequence[Judged], amount: float
) -> EntryMultiplier | None:
    """Read this scale's multiplier off the baseline's runs; None where that cannot be done."""
    if standings.board is None or standings.baseline in (None, runs[0].entry):
        return None
    assert standings.baseline is not None
    try:
        board = compare_entries(
            parse_results([record(run) for run in [*rungs, *runs]]), name_of(standings.baseline), standings.axis, amount
        )
        return board[name_of(runs[0].entry)]
    except ResultsError:
        return None


def picture(scales: Sequence[AtScale]) -> ScalePicture | None:
    """Draw multipliers over scale; None where there is no multiplier at any."""
    known = [(at, at.estimate, at.estimate.cm) for at in scales if at.estimate and at.estimate.cm]
    if not known:
        return None
    ends = [end(estimate, side) for _, estimate, _ in known for side in ("low", "high")]
    low, high = padded(math.log(min(1.0, *ends)), math.log(max(1.0, *ends)))
    heights = Scale(math.exp(low), math.exp(high))
    left, right = padded(math.log(known[0][0].amount), math.log(known[-1][0].amount))

    def mark(at: AtScale, estimate: EntryMultiplier, multiplier: float) -> Mark:
        y, low, high = (
            round(100 - heights.at(value), 2) for value in (multiplier, end(estimate, "low"), end(estimate, "high"))
        )
        x = round(100 * (math.log(at.amount) - left) / (right - left), 2)
        title = f"{at.name} of the budget, {formatting.budget(at.budget)}: {multiplier:.3f}, {len(at.runs)} runs"
        return Mark(x, y, low, high, f"{multiplier:.3f}", title)

    marks = [mark(*one) for one in known]
    return ScalePicture(
        marks=marks,
        line="M" + "L".join(f"{mark.x:g} {mark.y:g}" for mark in marks) if len(marks) > 1 else "",
        one=round(100 - heights.one, 2),
        x_ticks=[Tick(mark.x, at.name) for mark, (at, _, _) in zip(marks, known, strict=True)],
        y_ticks=[Tick(round(100 - tick.at, 2), tick.label) for tick in heights.ticks],
        summary="Multiplier by scale: " + ", ".join(mark.title for mark in marks) + ".",
    )
