"""The geometry of multiplier charts: whiskers on one logarithmic scale, and the ladder. Positions are per cent."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from django.urls import reverse

from leaderboard import formatting
from leaderboard.charts.curve_svg import Dot, Tick, Whisker, pad_range, path, y_steps
from leaderboard.models import Standing, StandingsTable
from leaderboard.rankings.chart_data import ChartData, LadderEntryDict, MultiplierRangeDict
from trainer.scoring.multiplier import EntryMultiplier

REACH = 1.6
"""The scale ends where no multiplier is within this factor, however long a whisker is: it is cut off there."""
FEW = 4
"""On a board of so many entries, the bad ones do not push the good ones together: the scale ends a little further below
1 than the best is above it, `BELOW` times as far on a logarithm, and at 1 / `LEAST` at the nearest."""
BELOW = 1.5
LEAST = 1.25
TICKS = (0.1, 0.2, 0.3, 0.5, 0.7, 0.8, 0.9, 1.0, 1.1, 1.2, 1.4, 1.7, 2.0, 3.0, 5.0, 10.0)
MOST_TICKS = 5


@dataclass(frozen=True)
class MultiplierScale:
    """A logarithmic axis."""

    low: float
    high: float

    @classmethod
    def around(cls, *multipliers: float) -> MultiplierScale:
        low, high = pad_range(*map(math.log, multipliers))
        return cls(math.exp(low), math.exp(high))

    def at(self, multiplier: float) -> float:
        """Return the place of a multiplier; beyond the ends, the end."""
        part = math.log(multiplier / self.low) / math.log(self.high / self.low)
        return round(100 * min(max(part, 0.0), 1.0), 2)

    @property
    def one(self) -> float:
        return self.at(1.0)

    @property
    def ticks(self) -> list[Tick]:
        """1, and a few round multipliers with room between them."""
        chosen = [1.0]
        for tick in sorted(TICKS, key=lambda tick: abs(math.log(tick))):
            apart = min(abs(self.at(tick) - self.at(other)) for other in chosen)
            if self.low < tick < self.high and apart > 100 / (MOST_TICKS + 1) and 6 < self.at(tick) < 94:
                chosen.append(tick)
        return [Tick(self.at(tick), f"{tick:g}") for tick in sorted(chosen)]


def scale_from_range(range_: MultiplierRangeDict | None) -> MultiplierScale | None:
    """Return the axis that all rows share; None without any multiplier."""
    if not range_:
        return None
    high = min(max(1.0, range_["highest_end"]), max(1.0, range_["highest"]) * REACH)
    if range_["count"] < FEW:
        lowest = min(1.0, range_["lowest"]) / REACH
    else:
        lowest = 1 / max(max(1.0, range_["highest"]) ** BELOW, LEAST)
    return MultiplierScale.around(max(min(1.0, range_["lowest_end"]), lowest), high)


def scale_of_row(row: Standing) -> MultiplierScale | None:
    if row.estimate is None or not row.estimate.cm:
        return None
    cm, (low, high) = row.estimate.cm, get_ends(row.estimate)
    return scale_from_range({"count": 1, "lowest": cm, "highest": cm, "lowest_end": low, "highest_end": high})


def get_ends(estimate: EntryMultiplier) -> tuple[float, float]:
    """Return the ends of the interval; the multiplier itself where there is none."""
    assert estimate.cm is not None
    low, high = (estimate.cm if end is None else end for end in (estimate.low, estimate.high))
    return low, high


def build_whisker(row: Standing, scale: MultiplierScale | None) -> Whisker | None:
    estimate = row.estimate
    if scale is None or estimate is None or estimate.cm is None:
        return None
    low, high = get_ends(estimate)
    return Whisker(scale.at(low), scale.at(estimate.cm), scale.at(high))


def draw_ladder(table: StandingsTable) -> dict[str, Any] | None:
    """Draw the baseline's runs over compute, its curve, and the entries; None without a run of the baseline."""
    data: ChartData = table.chart_data
    if not data or not data["runs"]:
        return None
    runs, entries = data["runs"], data["entries"]
    amounts = [run["compute"] for run in runs] + [entry["compute"] for entry in entries]
    losses = pad_range(*(run["bits_per_byte"] for run in runs), *(entry["loss"] for entry in entries))
    place = build_placing(pad_range(*map(math.log, amounts)), losses)
    rungs: list[dict[str, Any]] = [
        {**rung, "name": formatting.rung(rung["part"]) if rung["part"] else formatting.budget(rung["budget"])}
        for rung in data["rungs"]
    ]
    return {
        "curve": path(np.array([place(*point) for point in data["curve"]]).T) if data["curve"] else "",  # type: ignore[arg-type]
        "seeds": [
            {
                "at": place(run["compute"], run["bits_per_byte"]),
                "title": f"{run['title']}, {formatting.budget(run['budget'])}, seed {run['seed']}: "
                f"{run['bits_per_byte']:.4f}",
                "page": reverse("run", args=[run["run"]]),
            }
            for run in runs
        ],
        "entries": [
            {
                "at": place(entry["compute"], entry["loss"]),
                "title": entry["title"],
                "page": reverse("entry", args=[entry["entry"]]),
                "is_better": not number,
            }
            for number, entry in enumerate(entries)
        ],
        "reading": build_reading(entries[0], place) if entries else None,
        "x_ticks": [Tick(place(rung["compute"], 0).x, rung["name"]) for rung in rungs],
        "y_ticks": [Tick(place(amounts[0], tick).y, label) for tick, label in y_steps(*losses)],
        "rungs": rungs,
        "summary": f"Bits per byte over training compute: {len(runs)} runs of the baseline from {rungs[0]['name']} to "
        f"{rungs[-1]['name']} of the budget, and the {len(entries)} best other entries. The table has the numbers.",
    }


Place = Callable[[float, float], Dot]


def build_placing(x: tuple[float, float], y: tuple[float, float]) -> Place:

    def place(amount: float, loss: float) -> Dot:
        across = 100 * (math.log(amount) - x[0]) / (x[1] - x[0])
        return Dot(round(across, 2), round(100 * (y[1] - loss) / (y[1] - y[0]), 2))

    return place


def build_reading(entry: LadderEntryDict, place: Place) -> dict[str, Any] | None:
    """Return the horizontal line from an entry to the curve, which shows the multiplier."""
    if entry["multiplier"] is None:
        return None
    start = place(entry["compute"], entry["loss"])
    end = place(entry["compute"] * entry["multiplier"], entry["loss"])
    label = f"×{formatting.SPACE}{entry['multiplier']:.3f}"
    return {"start": start.x, "end": min(max(end.x, 0.0), 100.0), "y": start.y, "label": label}
