"""Several small pictures over one abscissa: a run's metrics, or several runs beside each other, without any script.

What is drawn is in the address: `?x=flops&smooth=strong&log=x&log=y`. Positions are per cent, as in `charts`.
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
    dots,
    end,
    end_of_line,
    padded,
    path,
    round_size,
    smooth,
    steps,
    thin,
    x_label,
    x_steps,
)
from leaderboard.models import Run

SMOOTHINGS = {"none": 0.0, "light": 1 / 100, "medium": 1 / 50, "strong": 1 / 12}
"""The part of a series that is averaged over."""
MEDIUM = "medium"
ROWS = 16
"""Of a table behind the pictures; the file has more."""
PLACES = ("Step", "Tokens", "FLOPs", "Time")
MAX_LARGE_DOTS = 60
SMALL_POINTS = 100
"""Of a line in a small panel, as it is drawn without script."""
STEEP = 1 / 25
"""Of a curve's way: what is lost here goes off the top of the picture, so that the rest can be told apart."""


@dataclass(frozen=True)
class Metric:
    """One panel: a column of the points."""

    name: str
    title: str
    unit: str
    write: Callable[[float], str]
    from_zero: bool = False
    may_be_log: bool = False
    scale: float = 1.0
    """What is drawn is the column times this."""


def short(value: float) -> str:
    return f"{value:.3g}"


METRICS = (
    Metric("loss", "Loss", "nats per token", lambda value: f"{value:.4f}", may_be_log=True),
    Metric("learning_rate", "Learning rate", "", short, from_zero=True),
    Metric("gradient_norm", "Gradient norm", "", short, from_zero=True, may_be_log=True),
    Metric("tokens_per_second", "Speed", "tokens/s", formatting.compact, from_zero=True),
    Metric("mfu", "MFU", "% of the peak", short, from_zero=True, scale=100),
    Metric("memory_bytes", "Memory", "GiB", short, from_zero=True, scale=2.0**-30),
    Metric("temperature_celsius", "GPU temperature", "°C", short),
)
"""The first one is drawn large, the others where they have values."""


@dataclass(frozen=True)
class View:
    """What a reader has chosen."""

    x: Abscissa = ABSCISSAE[0]
    smoothing: str = MEDIUM
    log_x: bool = False
    log_y: bool = False

    @classmethod
    def asked(cls, given: QueryDict) -> View:
        """Read an address; what it does not know it leaves as it is."""
        smoothing, logs = given.get("smooth", MEDIUM), given.getlist("log")
        return cls(
            x=next((name for name in ABSCISSAE if name == given.get("x")), ABSCISSAE[0]),
            smoothing=smoothing if smoothing in SMOOTHINGS else MEDIUM,
            log_x="x" in logs,
            log_y="y" in logs,
        )


@dataclass(frozen=True)
class Shown:
    """A run in the pictures."""

    run: Run
    curve: Curve
    label: str
    color: int | str
    """0 to 9, or a name of the stylesheet."""
    is_alone: bool = False
    """Drawn with its noise and its evaluations."""
    is_past: bool = False
    """A stretch of an earlier run: nothing comes after it here."""
    since: Point | None = None
    """Where it begins, if another run's weights came before."""


@dataclass(frozen=True)
class Line:
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
    lines: list[Line]
    x_ticks: list[Tick]
    y_ticks: list[Tick]
    latest: str
    """The first run's last value."""
    summary: str
    """The picture in words."""


@dataclass(frozen=True)
class Scale:
    """Where values lie, in per cent."""

    low: float
    high: float
    log: bool = False

    def at(self, value: float) -> float:
        if not self.log:
            return 100 * (value - self.low) / (self.high - self.low)
        return 100 * math.log(max(value, self.low) / self.low) / math.log(self.high / self.low)

    def across(self, values: Array) -> Array:
        """Return the places of many values."""
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
        return steps(self.low, self.high, round_size(self.high - self.low, 4))


def decades(low: float, high: float) -> Iterator[float]:
    for power in range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1):
        yield from (factor * 10.0**power for factor in (1, 2, 5))


def value_of(point: Point, metric: Metric) -> float | None:
    found = getattr(point, metric.name)
    return None if found is None or not math.isfinite(found) else found * metric.scale


def panels(shown: Sequence[Shown], view: View, metrics: Sequence[Metric] = METRICS) -> list[Panel]:
    """Return a panel for each of these metrics that some run has values of; none before the first step."""
    high = max((last_x(one, view.x) for one in shown if one.curve.train), default=0.0)
    if not high:
        return []
    low = min((getattr(one.curve.train[0], view.x) for one in shown if one.curve.train), default=0.0)
    x_scale = Scale(low, high, True) if view.log_x and 0 < low < high else Scale(0.0, high)
    return [found for metric in metrics if (found := panel(metric, shown, view, x_scale))]


def last_x(one: Shown, x: Abscissa) -> float:
    last = float(getattr(one.curve.train[-1], x))
    return last if one.is_past else end_of_line(one.run, last, float(getattr(one.since, x, 0)))


def panel(metric: Metric, shown: Sequence[Shown], view: View, x_scale: Scale) -> Panel | None:
    series = [found for one in shown if len((found := series_of(one, metric, view)).raw)]
    if not series:
        return None
    steep = metric.name == "loss" and not (view.log_x or view.log_y)
    y_scale = scale_of(metric, gentle(series) if steep else np.concatenate([one.drawn for one in series]), view)
    latest, first = float(series[0].raw[-1]), float(series[0].calm[0])
    unit = f" {metric.unit}" if metric.unit else ""
    return Panel(
        metric=metric,
        lines=[line(one, metric, view, x_scale, y_scale) for one in series],
        x_ticks=[Tick(round(x_scale.at(tick), 2), x_label(view.x)(tick)) for tick in x_ticks(x_scale, view.x)],
        y_ticks=[Tick(round(100 - y_scale.at(tick), 2), short(tick) if abs(tick) < 1e3 else formatting.compact(tick))
                 for tick in y_scale.ticks()],
        latest=metric.write(latest),
        summary=f"{metric.title}: from {metric.write(first)} to {metric.write(latest)}{unit}.",
    )  # fmt: skip


@dataclass(frozen=True)
class Series:
    """A run's values of one metric, where it has any."""

    of: Shown
    x: Array
    raw: Array
    calm: Array
    """Without their noise."""

    @property
    def drawn(self) -> Array:
        return self.raw if self.of.is_alone else self.calm


def series_of(one: Shown, metric: Metric, view: View) -> Series:
    column, x = one.curve.columns[metric.name], one.curve.columns[view.x]
    there = np.isfinite(column)
    raw = column[there] * metric.scale
    if metric.name == "loss" and view.smoothing == MEDIUM:
        return Series(one, x[there], raw, np.array(one.curve.smooth))  # made of the whole series
    return Series(one, x[there], raw, calmed(metric, raw, view.smoothing))


def gentle(series: Sequence[Series]) -> Array:
    """Return what is drawn after the first steep fall."""
    since = max(float(one.x[-1]) for one in series) * STEEP
    return np.concatenate([one.drawn[one.x >= since] for one in series])


def x_ticks(scale: Scale, x: Abscissa) -> list[float]:
    return scale.ticks() if scale.log else x_steps(x, scale.high)


def calmed(metric: Metric, values: Array, smoothing: str) -> Array:
    share = SMOOTHINGS[smoothing]
    return values if not share or metric.name == "learning_rate" else np.array(smooth(values.tolist(), share))


def scale_of(metric: Metric, values: Array, view: View) -> Scale:
    low, high = float(values.min()), float(values.max())
    if view.log_y and metric.may_be_log and 0 < low < high:
        return Scale(low / (high / low) ** 0.04, high * (high / low) ** 0.04, True)
    bottom, top = padded(low, high)
    return Scale(0.0, high * 1.06 or 1.0) if metric.from_zero else Scale(bottom, top)


def line(series: Series, metric: Metric, view: View, x_scale: Scale, y_scale: Scale) -> Line:
    def places(x: Array, values: Array) -> Way:
        return x_scale.across(x), 100 - y_scale.across(values)

    one, is_loss = series.of, metric is METRICS[0]
    x, calm = series.x, series.calm
    if not is_loss and len(calm) > SMALL_POINTS:
        kept = thin(calm, SMALL_POINTS)
        x, calm = x[kept], calm[kept]
    drawn = places(x, calm)
    seen = one.curve.dev if one.is_alone and is_loss else []
    evaluations = dots(
        places(np.array([getattr(point, view.x) for point in seen], float), np.array([point.loss for point in seen]))
    )
    return Line(
        color=one.color,
        label=one.label,
        smooth=path(drawn),
        raw=path(places(series.x, series.raw)) if one.is_alone and is_loss and view.smoothing != "none" else "",
        dots=tuple(dot for dot in evaluations if 0 <= dot.y <= 100),
        last=None if one.run.is_over or one.is_past or not is_loss else end(drawn),
    )


# --- the table behind ------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Table:
    heads: list[str]
    rows: list[list[str]]


def table(curve: Curve, count: int = ROWS) -> Table:
    """Return some of a run's points, evenly spread, the last among them, with every metric that it has."""
    metrics = [metric for metric in METRICS if np.isfinite(curve.columns[metric.name]).any()]
    return Table(
        heads=[*PLACES, *(head(metric) for metric in metrics)],
        rows=[[*places(point), *(cell(point, metric) for metric in metrics)] for point in some(curve.train, count)],
    )


def evaluations(curve: Curve, count: int = ROWS) -> Table:
    """Return the same of its evaluations on dev text."""
    return Table(
        heads=[*PLACES, "Loss, nats per token", "Bits per byte"],
        rows=[
            [
                *places(point),
                f"{point.loss:.4f}",
                formatting.MISSING if (bits := point.bits_per_byte) is None else f"{bits:.4f}",
            ]
            for point in some(curve.dev, count)
        ],
    )


def some(points: Sequence[Point], count: int) -> list[Point]:
    """Return so many of them, evenly spread, the last among them."""
    last = len(points) - 1
    return [points[i] for i in sorted({round(i * last / (count - 1)) for i in range(count)})] if points else []


def head(metric: Metric) -> str:
    return f"{metric.title}, {metric.unit}" if metric.unit else metric.title


def places(point: Point) -> list[str]:
    return [
        f"{point.step:,}",
        formatting.compact(point.tokens),
        formatting.power(point.flops),
        formatting.duration(point.seconds),
    ]


def cell(point: Point, metric: Metric) -> str:
    value = value_of(point, metric)
    return formatting.MISSING if value is None else metric.write(value)


# --- the same for scripts --------------------------------------------------------------------------------------------


def script_columns(run: Run, curve: Curve, *, whole: bool = True, since: Point | None = None) -> dict[str, Any]:
    """Return a run's curve as uPlot wants it: a list for each column that has values, and for each x where it ends.

    Without `whole` the noise of the loss is left out. `since`: where the curve begins, see `Shown`.
    """
    train, dev = curve.train, curve.dev
    last = train[-1] if train else None
    named: dict[str, list[Any]] = {name: tidied(curve.columns[name]) for name in ("flops", "seconds")}
    named |= {name: [getattr(point, name) for point in train] for name in ("tokens", "step")}
    for metric in METRICS:
        values = curve.columns[metric.name] * metric.scale
        if (whole or metric.name != "loss") and np.isfinite(values).any():
            named[metric.name] = tidied(values)
    return {
        "train": {**named, "smooth": [round(value, 5) for value in curve.smooth]},
        "dev": {name: [tidy(getattr(point, name)) for point in dev] for name in (*ABSCISSAE, "loss", "bits_per_byte")},
        "end": {
            name: end_of_line(run, float(getattr(last, name)), float(getattr(since, name, 0))) if last else 0
            for name in ABSCISSAE
        },
    }


def tidied(values: Array) -> list[float | None]:
    """Return a column as `tidy` would; None where there is no value."""
    with np.errstate(divide="ignore", invalid="ignore"):
        digits = 4 - np.floor(np.log10(np.abs(values)))
        up, down = 10.0 ** np.maximum(digits, 0), 10.0 ** np.maximum(-digits, 0)  # no power of ten below 1 is exact
        found = np.where(values == 0, 0.0, np.rint(values * up / down) * down / up)
    return [value if math.isfinite(value) else None for value in found.tolist()]


def tidy(value: float | None) -> float | None:
    """Five digits are more than a screen shows."""
    return value if value is None or isinstance(value, int) else float(f"{value:.5g}")
