"""Reads curves, thins and smooths them, and computes the geometry of the SVGs that pages show without script.

Positions are per cent of the picture's width and height, from the top left.
"""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Literal, NamedTuple

import numpy as np
import numpy.typing as npt
from django.db.models import Count, F, Window
from django.db.models.functions import RowNumber

from leaderboard.formatting import compact, duration, power
from leaderboard.models import CurvePoint, Run

PICTURE_POINTS = 400
MAX_PAGE_POINTS = 4000
"""Points of all curves on a page, read from the database."""
MAX_POINTS = 2000
FAR = 10_000.0
"""Per cent; a browser adds up relative paths in single precision, so farther points are moved here."""
DEV = CurvePoint.Series.DEV.value

Array = npt.NDArray[np.float64]
Places = npt.NDArray[np.intp]
Way = tuple[Array, Array]
Abscissa = Literal["tokens", "flops", "seconds", "step"]
ABSCISSAE: tuple[Abscissa, ...] = ("tokens", "flops", "seconds", "step")


class Point(NamedTuple):
    step: int
    tokens: int
    flops: float
    seconds: float
    loss: float
    bits_per_byte: float | None = None
    learning_rate: float | None = None
    gradient_norm: float | None = None
    tokens_per_second: float | None = None
    mfu: float | None = None
    mfu_windowed: float | None = None
    memory_bytes: int | None = None
    temperature_celsius: float | None = None


@dataclass(frozen=True)
class Curve:
    train: list[Point]
    smooth: list[float]
    dev: list[Point]

    @cached_property
    def columns(self) -> dict[str, Array]:
        """The points of `train` by column; missing values are NaN."""
        columns = zip(*self.train, strict=True) if self.train else [()] * len(Point._fields)
        return {name: np.array(column, dtype=float) for name, column in zip(Point._fields, columns, strict=True)}


@dataclass(frozen=True)
class Tick:
    at: float
    label: str


class Dot(NamedTuple):
    x: float
    y: float


@dataclass(frozen=True)
class Whisker:
    """A value and its 95 % interval, in per cent of the scale."""

    low: float
    dot: float
    high: float


def load_thinned_points(run: Run, count: int = MAX_POINTS) -> tuple[list[Point], list[Point]]:
    train, dev = load_points([run])[run.pk]
    return thin_points(train, count), thin_points(dev, count)


def thin_points(points: list[Point], count: int) -> list[Point]:
    return [points[i] for i in thin_values([point.loss for point in points], count)]


def load_points(runs: Sequence[Run]) -> dict[int, tuple[list[Point], list[Point]]]:
    """Return each run's train and dev points with a finite loss, by step: of many runs a part, evenly. One query."""
    series: dict[int, tuple[list[Point], list[Point]]] = {run.pk: ([], []) for run in runs}
    points = CurvePoint.objects.filter(run__in=series).order_by("run_id", "series", "step")
    if len(runs) > 2:
        curve = ["run", "series"]
        number = Window(RowNumber(), partition_by=curve, order_by="-step")
        points = points.annotate(number=number, total=Window(Count("pk"), partition_by=curve))
        stride = (F("total") * len(runs) - 1) / MAX_PAGE_POINTS + 1
        points = points.annotate(rest=(F("number") - 1) % stride).filter(rest=0)
    for run_id, name, *values in points.values_list("run_id", "series", *Point._fields):
        point = Point._make(values)
        if math.isfinite(point.loss):
            series[run_id][name == DEV].append(point)
    return series


def write_curve_csv(run: Run) -> bytes:
    text = io.StringIO()
    out = csv.writer(text, lineterminator="\n")
    out.writerow(["series", *("loss_nats_per_token" if name == "loss" else name for name in Point._fields)])
    for name, points in zip(("train", "dev"), load_thinned_points(run), strict=True):
        out.writerows([name, *("" if value is None else value for value in point)] for point in points)
    return text.getvalue().encode()


def load_curve(run: Run, count: int = PICTURE_POINTS) -> Curve:
    return load_curves([run], count)[run.pk]


def load_curves(runs: Sequence[Run], count: int = PICTURE_POINTS) -> dict[int, Curve]:
    """Return each run's curve by id, smoothed before it is thinned. One query."""
    curves = {}
    for run_id, (train, dev) in load_points(runs).items():
        losses = [point.loss for point in train]
        kept, calm = thin_values(losses, count), smooth_values(losses)
        curves[run_id] = Curve([train[i] for i in kept], [calm[i] for i in kept], thin_points(dev, count))
    return curves


def thin_values(values: Sequence[float] | Array, count: int) -> list[int]:
    """Return the indices of at most `count` values: the first, the last, and each stretch's lowest and highest."""
    if len(values) <= count:
        return list(range(len(values)))
    stretch, starts = stretches(len(values), count)
    known = np.asarray(values, dtype=float)
    lowest, highest = (np.lexsort((by, stretch))[starts] for by in (known, -known))
    return np.unique(np.concatenate(([0, len(values) - 1], lowest, highest))).tolist()  # type: ignore[no-any-return]


@lru_cache(64)
def stretches(length: int, count: int) -> tuple[Places, Places]:
    """Return the stretch of each value, and where each stretch begins."""
    parts = max((count - 2) // 2, 1)
    starts = np.arange(parts) * length // parts
    return np.repeat(np.arange(parts), np.diff(starts, append=length)), starts


def smooth_values(values: Sequence[float], share: float = 1 / 50) -> list[float]:
    """Return an exponential moving average over this share of the series; at its steep start, over a sixth of it."""
    result: list[float] = []
    calm = values[0] if values else 0.0
    for value, window in zip(values, windows(len(values), share), strict=True):
        calm += (value - calm) / window
        result.append(calm)
    return result


@lru_cache(64)
def windows(length: int, share: float) -> tuple[float, ...]:
    widest = max(length * share, 4)
    return tuple(max(1.0, min(widest, i / 6)) for i in range(length))


def find_axis_end(run: Run, last: float, since: float = 0.0) -> float:
    """Return the end of the x axis: the estimated end of the budget, else the last point. The run began at `since`."""
    if run.is_over or run.fraction <= 0:
        return last or 1.0
    return max(since + (last - since) / min(run.fraction, 1.0), last) or 1.0


def pad_range(*values: float) -> tuple[float, float]:
    """Return the range of the values with a margin."""
    low, high = min(values), max(values)
    margin = (high - low) * 0.06 or max(0.5, abs(high) * 1e-6)  # beside 1e17, 0.5 would be nothing
    return low - margin, high + margin


def build_dots(line: Way) -> list[Dot]:
    x, y = line
    return list(map(Dot, x.round(2).tolist(), y.round(2).tolist()))


def find_last_dot(line: Way) -> Dot:
    x, y = line
    return Dot(round(float(x[-1]), 2), round(float(y[-1]), 2))


def path(line: Way, aspect: int = 1) -> str:
    """Return the `d` of an SVG path: relative, in hundredths of a per cent, in a box of `aspect` * 10,000 x 10,000.
    Whole numbers are half as long as decimals and three times as fast to write."""
    x, y = (np.clip(np.nan_to_num(of), -FAR, FAR) for of in line)
    places = np.empty((len(x), 2), dtype=int)
    places[:, 0], places[:, 1] = np.rint(100 * aspect * x), np.rint(100 * y)
    places[1:] -= places[:-1].copy()
    return "m" + " ".join(map(str, places.ravel().tolist()))


def list_steps(low: float, high: float, size: float) -> list[float]:
    first = math.ceil(low / size)
    return [i * size for i in range(first, math.floor(high / size) + 1)]


def round_size(span: float, count: int) -> float:
    """Return 1, 2 or 5 times a power of ten, so that about `count` such steps fill the span."""
    power = 10.0 ** math.floor(math.log10(span / count))
    return next((power * factor for factor in (1, 2, 5) if power * factor * count >= span), power * 10)


CLOCK_SIZES = (1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 10_800, 21_600, 43_200, 86_400)


def x_steps(x: Abscissa, high: float) -> list[float]:
    if x == "seconds" and 5 <= high <= 6 * CLOCK_SIZES[-1]:
        size = float(next((size for size in CLOCK_SIZES if size * 6 >= high), CLOCK_SIZES[-1]))
    else:
        size = round_size(high, 5)
    return list_steps(0, high, size)


def x_label(x: Abscissa) -> Callable[[float], str]:
    labels: dict[str, Callable[[float], str]] = {"seconds": duration, "flops": power}
    return labels.get(x, compact)


def y_steps(low: float, high: float) -> list[tuple[float, str]]:
    size = round_size(high - low, 5)
    decimals = max(0, -math.floor(math.log10(size)))
    return [(tick, f"{tick:.{decimals}f}") for tick in list_steps(low, high, size)]
