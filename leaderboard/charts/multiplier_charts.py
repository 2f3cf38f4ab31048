"""The geometry of the multiplier's pictures: a whisker a row on one logarithmic scale, and the ladder's curve.

Positions are per cent of the picture's width and height, from the top left, as in `leaderboard.charts.curve_svg`.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from leaderboard import formatting
from leaderboard.charts.curve_svg import Dot, Tick, Whisker, padded, path, y_steps
from leaderboard.rankings.eligible_runs import Judged, compute
from leaderboard.rankings.standings import Row, Standings
from trainer.scoring.multiplier import EntryMultiplier, TrackComparison

REACH = 1.6
"""The scale ends where no multiplier is within this factor, however long a whisker is: it is cut off there."""
FEW = 4
"""On a board of so many entries, the bad ones do not push the good ones together: the scale ends a little further below
1 than the best is above it, `BELOW` times as far on a logarithm, and at 1 / `LEAST` at the nearest."""
BELOW = 1.5
LEAST = 1.25
TICKS = (0.1, 0.2, 0.3, 0.5, 0.7, 0.8, 0.9, 1.0, 1.1, 1.2, 1.4, 1.7, 2.0, 3.0, 5.0, 10.0)
MOST_TICKS = 5
MOST_ENTRIES = 100
"""In the ladder's picture, best first: more of them hide each other."""
CURVE_POINTS = 60


@dataclass(frozen=True)
class Scale:
    """Multipliers on a common logarithmic axis."""

    low: float
    high: float

    def at(self, multiplier: float) -> float:
        """Return the place of a multiplier; beyond the ends, the end."""
        part = math.log(multiplier / self.low) / math.log(self.high / self.low)
        return round(100 * min(max(part, 0.0), 1.0), 2)

    @property
    def one(self) -> float:
        """Where the baseline's line stands."""
        return self.at(1.0)

    @property
    def ticks(self) -> list[Tick]:
        """1, and a few round multipliers that leave each other room."""
        chosen = [1.0]
        for tick in sorted(TICKS, key=lambda tick: abs(math.log(tick))):
            apart = min(abs(self.at(tick) - self.at(other)) for other in chosen)
            if self.low < tick < self.high and apart > 100 / (MOST_TICKS + 1) and 6 < self.at(tick) < 94:
                chosen.append(tick)
        return [Tick(self.at(tick), f"{tick:g}") for tick in sorted(chosen)]


@dataclass(frozen=True)
class Rung:
    """A line of the table behind the ladder's picture."""

    name: str
    compute: float
    runs: int
    mean: float
    spread: float | None
    """Standard deviation between seeds; None for one run."""
    fitted: float | None


@dataclass(frozen=True)
class Station:
    """A point of the picture, with what it is."""

    at: Dot
    title: str
    page: str
    is_better: bool = False


@dataclass(frozen=True)
class Reading:
    """How one multiplier is read off: from its entry across to the curve."""

    start: float
    end: float
    y: float
    label: str


@dataclass(frozen=True)
class LadderPicture:
    curve: str
    """`d` of a path in a 100 x 100 box; empty while there is no curve."""
    seeds: list[Station]
    entries: list[Station]
    reading: Reading | None
    x_ticks: list[Tick]
    y_ticks: list[Tick]
    rungs: list[Rung]
    summary: str
    """The picture in words."""


def scale_of(rows: Sequence[Row]) -> Scale | None:
    """Return the axis that all rows share, or None where no row has a multiplier."""
    estimates = [row.estimate for row in rows if row.estimate and row.estimate.cm]
    if not estimates:
        return None
    centres = [1.0, *(estimate.cm for estimate in estimates if estimate.cm)]
    high = min(max([1.0, *(end(estimate, "high") for estimate in estimates)]), max(centres) * REACH)
    lowest = min(centres) / REACH if len(estimates) < FEW else 1 / max(max(centres) ** BELOW, LEAST)
    low = max(min([1.0, *(end(estimate, "low") for estimate in estimates)]), lowest)
    below, above = padded(math.log(low), math.log(high))
    return Scale(math.exp(below), math.exp(above))


def end(estimate: EntryMultiplier, side: str) -> float:
    """Return an end of the interval; the multiplier itself where there is none."""
    found = estimate.low if side == "low" else estimate.high
    assert estimate.cm is not None
    return estimate.cm if found is None else found


def whisker(row: Row, scale: Scale | None) -> Whisker | None:
    """Return the drawing of one row."""
    estimate = row.estimate
    if scale is None or estimate is None or estimate.cm is None:
        return None
    return Whisker(scale.at(end(estimate, "low")), scale.at(estimate.cm), scale.at(end(estimate, "high")))


def ladder_picture(standings: Standings) -> LadderPicture | None:
    """Draw the baseline's runs over compute, its curve, and the entries; None while the baseline has no run."""
    axis, ladder = standings.axis, [run for run in standings.ladder if compute(run, standings.axis)]
    if not ladder:
        return None
    others = [row for row in standings.rows if not row.is_baseline and row.estimate and row.estimate.compute]
    others = others[:MOST_ENTRIES]
    amounts = [compute(run, axis) or 1.0 for run in ladder] + [middle(row)[0] for row in others]
    losses = padded(*spread([run.bits_per_byte for run in ladder] + [middle(row)[1] for row in others]))
    place = placing(padded(*spread([math.log(amount) for amount in amounts])), losses)
    rungs = table(standings, ladder)
    return LadderPicture(
        curve=curve(standings.board, place),
        seeds=[
            Station(place(compute(run, axis) or 1.0, run.bits_per_byte), seed_title(run), run.page) for run in ladder
        ],
        entries=[Station(place(*middle(row)), row.latest.title, row.page, row is others[0]) for row in others],
        reading=reading(others[0], place) if others else None,
        x_ticks=[Tick(place(rung.compute, 0).x, rung.name) for rung in rungs],
        y_ticks=[Tick(place(amounts[0], tick).y, label) for tick, label in y_steps(*losses)],
        rungs=rungs,
        summary=f"Bits per byte over training compute: {len(ladder)} runs of the baseline from {rungs[0].name} to "
        f"{rungs[-1].name} of the budget, and the {len(others)} best other entries. The table below has the numbers.",
    )


def spread(values: Sequence[float]) -> tuple[float, float]:
    return min(values), max(values)


def seed_title(run: Judged) -> str:
    return f"{run.title}, {formatting.budget(run.budget)}, seed {run.seed}: {run.bits_per_byte:.4f}"


Place = Callable[[float, float], Dot]


def placing(x: tuple[float, float], y: tuple[float, float]) -> Place:
    """Return what puts (compute, loss) into the picture."""

    def place(amount: float, loss: float) -> Dot:
        across = 100 * (math.log(amount) - x[0]) / (x[1] - x[0])
        return Dot(round(across, 2), round(100 * (y[1] - loss) / (y[1] - y[0]), 2))

    return place


def middle(row: Row) -> tuple[float, float]:
    """Return an entry's compute and mean loss, as they were compared."""
    assert row.estimate is not None
    return row.estimate.compute or 1.0, row.estimate.loss or row.bits_per_byte


def curve(board: TrackComparison | None, place: Place) -> str:
    """Return the fitted curve from the first rung that was fitted to the last."""
    if board is None or board.ladder.degree == 0:
        return ""
    ladder = board.ladder
    xs = np.linspace(float(ladder.lowest), float(ladder.highest), CURVE_POINTS)
    losses = ladder.loss_at(xs)
    dots = [place(ladder.full * math.exp(x), loss) for x, loss in zip(xs.tolist(), losses.tolist(), strict=True)]
    across, down = np.array(dots).T
    return path((across, down))


def reading(row: Row, place: Place) -> Reading | None:
    """Return the line from an entry to where the baseline's curve has its loss; cut off at the picture's edge."""
    estimate = row.estimate
    if estimate is None or estimate.cm is None:
        return None
    amount, loss = middle(row)
    start, finish = place(amount, loss), place(amount * estimate.cm, loss)
    return Reading(start.x, min(max(finish.x, 0.0), 100.0), start.y, f"×{formatting.SPACE}{estimate.cm:.3f}")


def table(standings: Standings, ladder: Sequence[Judged]) -> list[Rung]:
    """Return the ladder's rungs, smallest first."""
    runs: dict[str, list[Judged]] = defaultdict(list)
    for run in ladder:
        runs[run.budget].append(run)
    return sorted((rung(standings, budget, found) for budget, found in runs.items()), key=lambda rung: rung.compute)


def rung(standings: Standings, budget: str, runs: Sequence[Judged]) -> Rung:
    losses = [run.bits_per_byte for run in runs]
    amounts = [math.log(compute(run, standings.axis) or 1) for run in runs]
    amount = math.exp(math.fsum(amounts) / len(amounts))
    board = standings.board
    fitted = float(board.ladder.loss_at(np.asarray(math.log(amount / board.ladder.full)))) if board else None
    part = 1.0 if budget == standings.budget else standings.rungs.get(budget)
    return Rung(
        name=formatting.rung(part) if part else formatting.budget(budget),
        compute=amount,
        runs=len(runs),
        mean=math.fsum(losses) / len(losses),
        spread=float(np.std(losses, ddof=1)) if len(losses) > 1 else None,
        fitted=fitted,
    )
