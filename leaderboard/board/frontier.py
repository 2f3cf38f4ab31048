"""The frontier: a track's records over time, drawn as a metro line that climbs from station to station.

A record is an entry whose confirmation runs once broke it. Its height is its multiplier as read off today's ladder: a
step may shrink, or even turn, as the ladder fills. Positions are per cent of the picture, as in `charts.py`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from itertools import islice

from leaderboard.charts.curve_svg import Tick, padded
from leaderboard.charts.multiplier_charts import Scale, end
from leaderboard.rankings.eligible_runs import CROWNED
from leaderboard.rankings.standings import Row, Standings
from trainer.scoring.multiplier import MultiplierVerdict

MOST_OTHERS = 300
"""So many entries are drawn that hold no record, best first."""
LABEL_WIDTH = 20.0
"""Per cent of the picture that a station's name takes."""
LABEL_HEIGHT = 11.0
LABEL_LETTERS = 26
AXIS_DAYS = (1, 2, 7, 14)


@dataclass(frozen=True)
class Record:
    """An entry that broke the record, when, and by how much."""

    row: Row
    at: datetime
    over: float | None
    """Its multiplier over that of the record before, or of the baseline."""
    is_standing: bool
    """Nobody has broken it."""


@dataclass(frozen=True)
class Station:
    """A record's place in the picture."""

    record: Record
    x: float
    y: float
    low: float
    high: float
    name: str
    """What is written before it; empty where there is no room."""


@dataclass(frozen=True)
class Frontier:
    records: list[Record]
    """Oldest first."""
    stations: list[Station]
    line: str
    """`d` of the step line in a 100 x 100 box."""
    others: str
    """`d` of a dot for each entry that is no record."""
    baseline: float
    """Height of the baseline's line, multiplier 1."""
    x_ticks: list[Tick]
    y_ticks: list[Tick]
    summary: str
    """The picture in words."""

    @property
    def standing(self) -> Record | None:
        return self.records[-1] if self.records else None


def records(standings: Standings) -> list[Record]:
    """Return the track's records, oldest first."""
    return standings.once("records", lambda: broken(standings))


def broken(standings: Standings) -> list[Record]:
    crowned = [
        (arrived, row)
        for row in standings.rows
        if not row.is_baseline and row.latest.confirmation.startswith(CROWNED)
        if row.estimate and row.estimate.cm and (arrived := since(row))
    ]
    crowned.sort(key=lambda pair: (pair[0], pair[1].entry))
    found, before = [], 1.0
    for number, (arrived, row) in enumerate(crowned, 1):
        multiplier = height(row)
        found.append(Record(row, arrived, multiplier / before, number == len(crowned)))
        before = multiplier
    return found


def leader(standings: Standings) -> Row | None:
    """Return who is ahead while there is no record: the first that is surely better than the baseline."""
    first = next((row for row in standings.rows if row.estimate and row.estimate.rank), None)
    return first if first and first.estimate and first.estimate.verdict is MultiplierVerdict.BETTER else None


def since(row: Row) -> datetime | None:
    """Return when the last of its runs was judged: a record stands since the last of its confirmation runs."""
    known = [run.finished_at for run in row.runs if run.finished_at]
    return max(known, default=None)


def height(row: Row) -> float:
    assert row.estimate is not None
    assert row.estimate.cm is not None
    return row.estimate.cm


def frontier(standings: Standings, now: datetime) -> Frontier | None:
    """Draw it; None until an entry beside the baseline has a multiplier."""
    found = records(standings)
    others = standings.once("beside records", lambda: without_record(standings))
    if not found and not others:
        return None
    begin = first_moment(standings, [record.at for record in found] + [arrived for arrived, _ in others])
    scale = heights([record.row for record in found], [row for _, row in others])
    span = max((now - begin).total_seconds(), 1.0)

    def across(at: datetime) -> float:
        return round(97 * min(max((at - begin).total_seconds() / span, 0), 1), 2)

    stations = named([station(record, across(record.at), scale) for record in found])
    return Frontier(
        records=found,
        stations=stations,
        line=steps(stations, 100 - scale.one),
        others="".join(
            f"M{across(arrived):g} {100 - scale.at(height(row)):g}h0"
            for arrived, row in others
            if height(row) > scale.low
        ),
        baseline=round(100 - scale.one, 2),
        x_ticks=[Tick(across(day), label) for day, label in days(begin, now)],
        y_ticks=[Tick(round(100 - tick.at, 2), tick.label) for tick in scale.ticks],
        summary=summary(found, len(others)),
    )


def without_record(standings: Standings) -> list[tuple[datetime, Row]]:
    """Return the best entries that hold no record, with when they arrived."""
    holders = {record.row.entry for record in records(standings)}
    arrived = (
        (at, row)
        for row in standings.rows
        if row.entry not in holders and not row.is_baseline
        if row.estimate and row.estimate.cm and (at := since(row))
    )
    return list(islice(arrived, MOST_OTHERS))


def first_moment(standings: Standings, arrivals: Sequence[datetime]) -> datetime:
    """Return where the picture begins: when the baseline first arrived, if anything of it was before the others."""
    own = [run.finished_at for run in standings.ladder if run.finished_at]
    return min([*arrivals, *own])


def heights(records: Sequence[Row], others: Sequence[Row]) -> Scale:
    """Return the vertical axis: from a little below the baseline, so that the worst entries do not flatten the rest."""
    values = [1.0, *(height(row) for row in [*records, *others])]
    values += [end(row.estimate, side) for row in records if row.estimate for side in ("low", "high")]
    top = max(values)
    low = max(min(values), 1 / max(top, 1.05) ** 0.5)
    below, above = padded(math.log(low), math.log(top))
    return Scale(math.exp(below), math.exp(above))


def station(record: Record, x: float, scale: Scale) -> Station:
    estimate = record.row.estimate
    assert estimate is not None
    values = (height(record.row), end(estimate, "low"), end(estimate, "high"))
    y, low, high = (round(100 - scale.at(value), 2) for value in values)
    return Station(record, x, y, low, high, "")


def named(stations: Sequence[Station]) -> list[Station]:
    """Write names beside the stations that have room for one, the latest first."""
    kept: list[Station] = []
    done: list[Station] = []
    for one in reversed(stations):
        is_free = all(abs(one.x - other.x) > LABEL_WIDTH or abs(one.y - other.y) > LABEL_HEIGHT for other in kept)
        title = one.record.row.latest.title
        name = title if len(title) <= LABEL_LETTERS else title[: LABEL_LETTERS - 1].rstrip() + "…"
        done.append(replace(one, name=name if is_free and one.x > LABEL_WIDTH else ""))
        if is_free:
            kept.append(one)
    return done[::-1]


def steps(stations: Sequence[Station], floor: float) -> str:
    """Return the line: along the baseline, up at each record, and on to now."""
    parts = [f"M0 {floor:g}"]
    for one in stations:
        parts.append(f"H{one.x:g}V{one.y:g}")
    return "".join(parts) + "H97"


def days(begin: datetime, now: datetime) -> list[tuple[datetime, str]]:
    """Return midnights to write under the picture, at most about six."""
    whole = max((now - begin).days, 1)
    size = next((size for size in AXIS_DAYS if whole / size <= 6), 0) or math.ceil(whole / 6 / 7) * 7
    first = begin.replace(hour=0, minute=0, second=0, microsecond=0) + timedelta(days=1)
    found = [first + timedelta(days=size * number) for number in range(7)]
    return [(day, f"{day:%-d %b}") for day in found if day < now]


def summary(records: Sequence[Record], others: int) -> str:
    if not records:
        return f"No record yet. {others} entries by date and multiplier."
    last = records[-1]
    return (
        f"{len(records)} records since {records[0].at:%-d %B}, the last by {last.row.latest.title}: multiplier "
        f"{height(last.row):.3f}. {others} other entries by date and multiplier. The table below has the records."
    )
