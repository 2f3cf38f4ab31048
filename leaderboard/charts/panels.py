"""The loss of a run or of several as a picture without script, and the columns and tables behind all metrics.

A script draws the picture again with uPlot, and every other metric. Positions are per cent.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

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
    load_curve,
    pad_range,
    x_label,
    x_steps,
    y_steps,
)
from leaderboard.models import Run

TABLE_ROWS = 16
PLACES = ("Step", "Tokens", "FLOPs", "Time")
MAX_LARGE_DOTS = 60


@dataclass(frozen=True)
class Metric:
    name: str
    title: str
    unit: str
    write: Callable[[float], str]
    scale: float = 1.0


def format_short(value: float) -> str:
    return f"{value:.3g}"


METRICS = (
    Metric("loss", "Loss", "nats per token", lambda value: f"{value:.4f}"),
    Metric("learning_rate", "Learning rate", "", format_short),
    Metric("gradient_norm", "Gradient norm", "", format_short),
    Metric("tokens_per_second", "Speed", "tokens/s", formatting.compact),
    Metric("mfu", "MFU, all operations", "% of the peak", format_short, scale=100),
    Metric("mfu_windowed", "MFU as nanochat counts", "% of the peak", format_short, scale=100),
    Metric("memory_bytes", "Memory", "GiB", format_short, scale=2.0**-30),
    Metric("temperature_celsius", "GPU temperature", "°C", format_short),
)
"""The loss comes first."""


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
    smooth: Way
    raw: Way | None
    dots: list[Dot]
    last: Dot | None
    """The latest point of an unfinished run."""

    @property
    def dot_radius(self) -> str:
        return "3.500" if len(self.dots) <= MAX_LARGE_DOTS else "1.750"


@dataclass(frozen=True)
class LossChart:
    lines: list[CurveLine]
    x_ticks: list[Tick]
    y_ticks: list[Tick]
    summary: str


def draw_losses(shown: Sequence[Shown], x: Abscissa = "tokens") -> LossChart | None:
    """Draw the losses of runs; None before the first point. An unfinished run leaves room for the rest."""
    shown = [one for one in shown if one.curve.train]
    if not shown:
        return None
    x_high = max(find_end(one, x) for one in shown)
    losses = [one.curve.columns["loss"] if one.is_alone else np.array(one.curve.smooth) for one in shown]
    seen = [point.loss for one in shown if one.is_alone for point in one.curve.dev]
    y_low, y_high = pad_range(*np.concatenate(losses).tolist(), *seen)

    def place(points: Array, loss: Array) -> Way:
        return 100 * points / x_high, 100 * (y_high - loss) / (y_high - y_low)

    def build_line(one: Shown) -> CurveLine:
        points, dev = one.curve.columns[x], one.curve.dev if one.is_alone else []
        smooth = place(points, np.array(one.curve.smooth))
        evaluations = np.array([(getattr(point, x), point.loss) for point in dev], dtype=float).reshape(-1, 2)
        return CurveLine(
            color=one.color,
            smooth=smooth,
            raw=place(points, one.curve.columns["loss"]) if one.is_alone else None,
            dots=build_dots(place(*evaluations.T)),
            last=None if one.run.is_over or one.is_past else find_last_dot(smooth),
        )

    first = shown[0].curve
    return LossChart(
        lines=[build_line(one) for one in shown],
        x_ticks=[Tick(round(100 * tick / x_high, 2), x_label(x)(tick)) for tick in x_steps(x, x_high)],
        y_ticks=[
            Tick(round(100 * (y_high - tick) / (y_high - y_low), 2), label) for tick, label in y_steps(y_low, y_high)
        ],
        summary=f"Loss curve: from {first.train[0].loss:.2f} to {first.smooth[-1]:.2f} nats per token "
        f"after {formatting.compact(first.train[-1].tokens)} tokens.",
    )


def draw_run(run: Run) -> LossChart | None:
    """Draw the loss of one run over its tokens."""
    return draw_losses([Shown(run, load_curve(run), f"run {run.pk}", "ink", is_alone=True)])


def find_end(one: Shown, x: Abscissa) -> float:
    last = float(getattr(one.curve.train[-1], x))
    return last if one.is_past else find_axis_end(one.run, last, float(getattr(one.since, x, 0)))


def list_drawn_metrics(shown: Sequence[Shown]) -> list[Metric]:
    """Return the metrics beside the loss that a run has values of."""
    return [metric for metric in METRICS[1:] if any(np.isfinite(one.curve.columns[metric.name]).any() for one in shown)]


# --- the table behind ------------------------------------------------------------------------------------------------


Table = dict[str, list[Any]]
"""Heads and rows."""


def build_points_table(curve: Curve, count: int = TABLE_ROWS) -> Table:
    """Return some of a run's points, evenly spread, with every metric that it has."""
    metrics = [metric for metric in METRICS if np.isfinite(curve.columns[metric.name]).any()]
    return {
        "heads": [*PLACES, *(f"{metric.title}, {metric.unit}" if metric.unit else metric.title for metric in metrics)],
        "rows": [
            [*format_place(point), *(format_metric(point, metric) for metric in metrics)]
            for point in select_evenly(curve.train, count)
        ],
    }


def build_evaluations_table(curve: Curve) -> Table:
    rows = [
        [*format_place(point), *(formatting.decimals(value, 4) for value in (point.loss, point.bits_per_byte))]
        for point in select_evenly(curve.dev, TABLE_ROWS)
    ]
    return {"heads": [*PLACES, "Loss, nats per token", "Bits per byte"], "rows": rows}


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
