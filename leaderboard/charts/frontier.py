"""The frontier: a track's records over time, drawn as a metro line that climbs from station to station.

Its height is a record's multiplier as read off today's ladder: a step may shrink, or even turn, as the ladder fills.
Positions are per cent of the chart, as in `curve_svg`.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from itertools import chain
from typing import Any

from leaderboard.charts.curve_svg import Tick
from leaderboard.charts.multiplier_charts import MultiplierScale, get_ends
from leaderboard.models import Standing, StandingsTable
from trainer.scoring.multiplier import MultiplierVerdict

LABEL_WIDTH = 20.0
LABEL_HEIGHT = 11.0
LABEL_LETTERS = 26
AXIS_DAYS = (1, 2, 7, 14)


@dataclass(frozen=True)
class Record:
    row: Standing
    at: datetime
    over: float | None
    """Its multiplier over that of the record before, or of the baseline."""
    is_standing: bool


def build_records(rows: Iterable[Standing]) -> list[Record]:
    holders = [(row.finished_at, row) for row in rows if row.is_record and row.finished_at]
    holders.sort(key=lambda pair: (pair[0], pair[1].entry_id))
    records, before = [], 1.0
    for number, (scored_at, row) in enumerate(holders, 1):
        multiplier = get_multiplier(row)
        records.append(Record(row, scored_at, multiplier / before, number == len(holders)))
        before = multiplier
    return records


def load_records(table: StandingsTable) -> list[Record]:
    """Read a track's records, oldest first. One query."""
    if table.pk is None:
        return []
    return build_records(table.rows.filter(is_record=True).select_related("entry__based_on").defer("ties"))


def get_leader(row: Standing | None) -> Standing | None:
    """Return the leader's row if it is surely better than the baseline; shown while there is no record."""
    return row if row and row.verdict == MultiplierVerdict.BETTER else None


def get_multiplier(row: Standing) -> float:
    assert row.multiplier is not None
    return row.multiplier


def build_frontier(table: StandingsTable, records: list[Record], now: datetime) -> dict[str, Any] | None:
    """Draw the records and the best other entries; None while only the baseline has a multiplier."""
    others = [(datetime.fromtimestamp(at, UTC), multiplier) for at, multiplier in table.chart_data.get("others", [])]
    if not records and not others:
        return None
    begin = min([record.at for record in records] + [at for at, _ in others])
    if (begins_at := table.chart_data["begins_at"]) is not None:
        begin = min(begin, datetime.fromtimestamp(begins_at, UTC))
    scale = build_scale([record.row for record in records], [multiplier for _, multiplier in others])
    span = max((now - begin).total_seconds(), 1.0)

    def across(at: datetime) -> float:
        """Return the percentage of the chart's width; the edges are left free for half a dot."""
        return round(1 + 96 * min(max((at - begin).total_seconds() / span, 0), 1), 2)

    stations = name_stations([build_station(record, across(record.at), scale) for record in records])
    return {
        "records": records,
        "standing": records[-1] if records else None,
        "stations": stations,
        "line": "".join([f"M0 {100 - scale.one:g}", *(f"H{each['x']:g}V{each['y']:g}" for each in stations), "H97"]),
        # a dot for each entry without a record
        "others": "".join(
            f"M{across(at):g} {100 - scale.at(multiplier):g}h0" for at, multiplier in others if multiplier > scale.low
        ),
        "baseline": round(100 - scale.one, 2),
        "x_ticks": [Tick(across(day), label) for day, label in find_days(begin, now)],
        "y_ticks": [Tick(round(100 - tick.at, 2), tick.label) for tick in scale.ticks],
        "summary": summarize(records, len(others)),
    }


def build_scale(records: Sequence[Standing], others: Sequence[float]) -> MultiplierScale:
    """Return the y axis. It starts a little below the baseline, so that bad entries do not flatten the rest."""
    values = [1.0, *(get_multiplier(row) for row in records), *others]
    values += chain.from_iterable(get_ends(row.estimate) for row in records if row.estimate)
    top = max(values)
    return MultiplierScale.around(max(min(values), 1 / max(top, 1.05) ** 0.5), top)


def build_station(record: Record, x: float, scale: MultiplierScale) -> dict[str, Any]:
    estimate = record.row.estimate
    assert estimate is not None
    y, low, high = (round(100 - scale.at(value), 2) for value in (get_multiplier(record.row), *get_ends(estimate)))
    return {"record": record, "x": x, "y": y, "low": low, "high": high}


def name_stations(stations: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Name the stations that have room for a label, the latest first."""
    kept: list[tuple[float, float]] = []
    named = []
    for station in reversed(stations):
        x, y, title = station["x"], station["y"], station["record"].row.entry.title
        is_free = all(abs(x - left) > LABEL_WIDTH or abs(y - top) > LABEL_HEIGHT for left, top in kept)
        name = title if len(title) <= LABEL_LETTERS else title[: LABEL_LETTERS - 1].rstrip() + "…"
        named.append({**station, "name": name if is_free and x > LABEL_WIDTH else ""})
        if is_free:
            kept.append((x, y))
    return named[::-1]


def find_days(begin: datetime, now: datetime) -> list[tuple[datetime, str]]:
    """Return midnights for the x axis, at most six."""
    whole = max((now - begin).days, 1)
    size = next((size for size in AXIS_DAYS if whole / size <= 6), 0) or math.ceil(whole / 6 / 7) * 7
    first = begin.replace(hour=0, minute=0, second=0, microsecond=0) + timedelta(days=1)
    days = [first + timedelta(days=size * number) for number in range(7)]
    return [(day, f"{day:%-d %b}") for day in days if day < now]


def summarize(records: Sequence[Record], others: int) -> str:
    if not records:
        return f"No record yet. {others} entries by date and multiplier."
    last = records[-1]
    multiplier = get_multiplier(last.row)
    return (
        f"{len(records)} records since {records[0].at:%-d %b}, the last by {last.row.entry.title}: multiplier "
        f"{multiplier:.3f}. {others} other entries by date and multiplier. The table below has the records."
    )
