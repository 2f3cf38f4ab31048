"""Small charts over one x axis without script: a run's metrics, or several runs. Positions are per cent.

The query string chooses how they are drawn: `?x=flops&smooth=strong&log=x&log=y`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from django.http import QueryDict

from leaderboard import formatting
from leaderboard.charts.curve_svg import (
    ABSCISSAE,
    Abscissa,
    Array,
    Curve,
    Dot,
    Point,
    Tick,
    Way,
    build_dots,
    find_axis_end,
    find_last_dot,
    list_steps,
    pad_range,
    path,
    round_size,
    smooth_values,
    thin_values,
    x_label,
    x_steps,
)
from leaderboard.models import Run

SMOOTHINGS = {"none": 0.0, "light": 1 / 100, "medium": 1 / 50, "strong": 1 / 12}
"""Share of a series that is averaged over."""
MEDIUM = "medium"
TABLE_ROWS = 16
PLACES = ("Step", "Tokens", "FLOPs", "Time")
MAX_LARGE_DOTS = 60
SMALL_POINTS = 100
STEEP = 1 / 25
"""First part of a loss curve that may leave the chart at the top, so that the rest uses its height."""


@dataclass(frozen=True)
class Metric:
    name: str
    title: str
    unit: str
    write: Callable[[float], str]
    from_zero: bool = False
    may_be_log: bool = False
    scale: float = 1.0


def format_short(value: float) -> str:
    return f"{value:.3g}"


METRICS = (
    Metric("loss", "Loss", "nats per token", lambda value: f"{value:.4f}", may_be_log=True),
    Metric("learning_rate", "Learning rate", "", format_short, from_zero=True),
    Metric("gradient_norm", "Gradient norm", "", format_short, from_zero=True, may_be_log=True),
    Metric("tokens_per_second", "Speed", "tokens/s", formatting.compact, from_zero=True),
    Metric("mfu", "MFU, all operations", "% of the peak", format_short, from_zero=True, scale=100),
    Metric("mfu_windowed", "MFU as nanochat counts", "% of the peak", format_short, from_zero=True, scale=100),
    Metric("memory_bytes", "Memory", "GiB", format_short, from_zero=True, scale=2.0**-30),
    Metric("temperature_celsius", "GPU temperature", "°C", format_short),
)
"""The first one is drawn large."""


@dataclass(frozen=True)
class View:
    x: Abscissa = ABSCISSAE[0]
    smoothing: str = MEDIUM
    log_x: bool = False
    log_y: bool = False

    @classmethod
    def from_query(cls, query: QueryDict) -> View:
        """Parse the query string; unknown values are ignored."""
        smoothing, logs = query.get("smooth", MEDIUM), query.getlist("log")
        return cls(
            x=next((name for name in ABSCISSAE if name == query.get("x")), ABSCISSAE[0]),
            smoothing=smoothing if smoothing in SMOOTHINGS else MEDIUM,
            log_x="x" in logs,
            log_y="y" in logs,
        )


@dataclass(frozen=True)
class Shown:
    """A run in the charts."""

    run: Run
    curve: Curve
    label: str
    color: int | str
    """0 to 9, or a color of the stylesheet."""
    is_alone: bool = False
    """Drawn with its noise and its evaluations."""
    is_past: bool = False
    """A stretch of an earlier run: nothing follows it."""
    since: Point | None = None
    """The start of the run, if it started from another run's weights."""


@dataclass(frozen=True)
class CurveLine:
    color: int | str
    label: str
    smooth: str
    raw: str = ""
    dots: tuple[Dot, ...] = ()
    last: Dot | None = None
    """The latest point of an unfinished run."""

    @property
    def dot_radius(self) -> str:
        return "3.500" if len(self.dots) <= MAX_LARGE_DOTS else "1.750"


@dataclass(frozen=True)
class Panel:
    metric: Metric
    lines: list[CurveLine]
    x_ticks: list[Tick]
    y_ticks: list[Tick]
    latest: str
    """The first run's last value."""
    summary: str


@dataclass(frozen=True)
class Scale:
    low: float
    high: float
    log: bool = False

    def at(self, value: float) -> float:
        if not self.log:
            return 100 * (value - self.low) / (self.high - self.low)
        return 100 * math.log(max(value, self.low) / self.low) / math.log(self.high / self.low)

    def at_all(self, values: Array) -> Array:
        if self.log:
            return 100 * np.log(np.maximum(values, self.low) / self.low) / math.log(self.high / self.low)
        return 100 * (values - self.low) / (self.high - self.low)

    def ticks(self) -> list[float]:
        """Return about five round values; on a logarithmic scale those of 1, 2 and 5."""
        if self.log and (found := [tick for tick in decades(self.low, self.high) if self.low <= tick <= self.high]):
            if len(found) > 7:
                found = [tick for tick in found if f"{tick:.0e}"[0] == "1"]
            if len(found) > 2:
                return found
        return list_steps(self.low, self.high, round_size(self.high - self.low, 4))


def decades(low: float, high: float) -> Iterator[float]:
    for power in range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1):
        yield from (factor * 10.0**power for factor in (1, 2, 5))


def build_panels(shown: Sequence[Shown], view: View, metrics: Sequence[Metric] = METRICS) -> list[Panel]:
    """Return a panel for each metric that a run has values of; none before the first step."""
    high = max((last_x(one, view.x) for one in shown if one.curve.train), default=0.0)
    if not high:
        return []
    low = min((getattr(one.curve.train[0], view.x) for one in shown if one.curve.train), default=0.0)
    x_scale = Scale(low, high, True) if view.log_x and 0 < low < high else Scale(0.0, high)
    return [found for metric in metrics if (found := build_panel(metric, shown, view, x_scale))]


def last_x(one: Shown, x: Abscissa) -> float:
    last = float(getattr(one.curve.train[-1], x))
    return last if one.is_past else find_axis_end(one.run, last, float(getattr(one.since, x, 0)))


def build_panel(metric: Metric, shown: Sequence[Shown], view: View, x_scale: Scale) -> Panel | None:
    series = [found for one in shown if len((found := build_series(one, metric, view)).raw)]
    if not series:
        return None
    is_steep = metric.name == "loss" and not (view.log_x or view.log_y)
    since = STEEP * max(float(one.x[-1]) for one in series) if is_steep else -math.inf
    y_scale = build_value_scale(metric, np.concatenate([one.drawn[one.x >= since] for one in series]), view)
    x_values = x_scale.ticks() if x_scale.log else x_steps(view.x, x_scale.high)
    latest, first = float(series[0].raw[-1]), float(series[0].calm[0])
    unit = f" {metric.unit}" if metric.unit else ""
    return Panel(
        metric=metric,
        lines=[build_line(one, metric, view, x_scale, y_scale) for one in series],
        x_ticks=[Tick(round(x_scale.at(x), 2), x_label(view.x)(x)) for x in x_values],
        y_ticks=[
            Tick(round(100 - y_scale.at(y), 2), format_short(y) if abs(y) < 1e3 else formatting.compact(y))
            for y in y_scale.ticks()
        ],
        latest=metric.write(latest),
        summary=f"{metric.title}: from {metric.write(first)} to {metric.write(latest)}{unit}.",
    )


@dataclass(frozen=True)
class Series:
    of: Shown
    x: Array
    raw: Array
    calm: Array

    @property
    def drawn(self) -> Array:
        return self.raw if self.of.is_alone else self.calm


def build_series(one: Shown, metric: Metric, view: View) -> Series:
    column, x = one.curve.columns[metric.name], one.curve.columns[view.x]
    there = np.isfinite(column)
    raw = column[there] * metric.scale
    if metric.name == "loss" and view.smoothing == MEDIUM:
        return Series(one, x[there], raw, np.array(one.curve.smooth))  # smoothed before it was thinned
    share = SMOOTHINGS[view.smoothing] if metric.name != "learning_rate" else 0.0
    return Series(one, x[there], raw, np.array(smooth_values(raw.tolist(), share)) if share else raw)


def build_value_scale(metric: Metric, values: Array, view: View) -> Scale:
    low, high = float(values.min()), float(values.max())
    if view.log_y and metric.may_be_log and 0 < low < high:
        return Scale(low / (high / low) ** 0.04, high * (high / low) ** 0.04, True)
    bottom, top = pad_range(low, high)
    return Scale(0.0, high * 1.06 or 1.0) if metric.from_zero else Scale(bottom, top)


def build_line(series: Series, metric: Metric, view: View, x_scale: Scale, y_scale: Scale) -> CurveLine:
    def places(x: Array, values: Array) -> Way:
        return x_scale.at_all(x), 100 - y_scale.at_all(values)

    one, is_loss = series.of, metric is METRICS[0]
    x, calm = series.x, series.calm
    if not is_loss and len(calm) > SMALL_POINTS:
        kept = thin_values(calm, SMALL_POINTS)
        x, calm = x[kept], calm[kept]
    drawn = places(x, calm)
    seen = one.curve.dev if one.is_alone and is_loss else []
    evaluations = build_dots(
        places(np.array([getattr(point, view.x) for point in seen], float), np.array([point.loss for point in seen]))
    )
    return CurveLine(
        color=one.color,
        label=one.label,
        smooth=path(drawn),
        raw=path(places(series.x, series.raw)) if one.is_alone and is_loss and view.smoothing != "none" else "",
        dots=tuple(dot for dot in evaluations if 0 <= dot.y <= 100),
        last=None if one.run.is_over or one.is_past or not is_loss else find_last_dot(drawn),
    )


# --- the table behind ------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Table:
    heads: list[str]
    rows: list[list[str]]


def build_points_table(curve: Curve, count: int = TABLE_ROWS) -> Table:
    """Return some of a run's points, evenly spread, with every metric that it has."""
    metrics = [metric for metric in METRICS if np.isfinite(curve.columns[metric.name]).any()]
    return Table(
        heads=[*PLACES, *(f"{metric.title}, {metric.unit}" if metric.unit else metric.title for metric in metrics)],
        rows=[
            [*format_place(point), *(format_metric(point, metric) for metric in metrics)]
            for point in select_evenly(curve.train, count)
        ],
    )


def build_evaluations_table(curve: Curve) -> Table:
    rows = [
        [*format_place(point), *(formatting.decimals(value, 4) for value in (point.loss, point.bits_per_byte))]
        for point in select_evenly(curve.dev, TABLE_ROWS)
    ]
    return Table([*PLACES, "Loss, nats per token", "Bits per byte"], rows)


def select_evenly(points: Sequence[Point], count: int) -> list[Point]:
    last = len(points) - 1
    return [points[i] for i in sorted({round(i * last / (count - 1)) for i in range(count)})] if points else []


def format_place(point: Point) -> tuple[str, ...]:
    tokens, flops = formatting.compact(point.tokens), formatting.power(point.flops)
    return f"{point.step:,}", tokens, flops, formatting.duration(point.seconds)


def format_metric(point: Point, metric: Metric) -> str:
    value = getattr(point, metric.name)
    is_known = value is not None and math.isfinite(value)
    return metric.write(value * metric.scale) if is_known else formatting.MISSING


# --- the same for scripts --------------------------------------------------------------------------------------------


def script_columns(run: Run, curve: Curve, *, whole: bool = True, since: Point | None = None) -> dict[str, Any]:
    """Return a run's curve for uPlot: a list for each column with values, and the end of each x axis.

    Without `whole` the unsmoothed loss is left out. `since`: where the curve begins, see `Shown`.
    """
    train, dev = curve.train, curve.dev
    last = train[-1] if train else None
    named: dict[str, list[Any]] = {name: round_column(curve.columns[name]) for name in ("flops", "seconds")}
    named |= {name: [getattr(point, name) for point in train] for name in ("tokens", "step")}
    for metric in METRICS:
        values = curve.columns[metric.name] * metric.scale
        if (whole or metric.name != "loss") and np.isfinite(values).any():
            named[metric.name] = round_column(values)
    return {
        "train": {**named, "smooth": [round(value, 5) for value in curve.smooth]},
        "dev": {
            name: [round_value(getattr(point, name)) for point in dev] for name in (*ABSCISSAE, "loss", "bits_per_byte")
        },
        "end": {
            name: find_axis_end(run, float(getattr(last, name)), float(getattr(since, name, 0))) if last else 0
            for name in ABSCISSAE
        },
    }


def round_column(values: Array) -> list[float | None]:
    """Round to five digits, the most that a screen shows; None where there is no value."""
    with np.errstate(divide="ignore", invalid="ignore"):
        digits = 4 - np.floor(np.log10(np.abs(values)))
        up, down = 10.0 ** np.maximum(digits, 0), 10.0 ** np.maximum(-digits, 0)  # no power of ten below 1 is exact
        found = np.where(values == 0, 0.0, np.rint(values * up / down) * down / up)
    return [value if math.isfinite(value) else None for value in found.tolist()]


def round_value(value: float | None) -> float | None:
    return value if value is None or isinstance(value, int) else float(f"{value:.5g}")
