"""Loss against compute: the baseline's runs with their curve, the idea's beside them. As an SVG and in a terminal."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from xml.sax.saxutils import escape

import numpy as np

from trainer.scoring.multiplier import RunResult, TrackComparison

STYLE = """<style>
text{font:13px system-ui,sans-serif;fill:#24292f;font-variant-numeric:tabular-nums}
.paper{fill:#fff}.faint{stroke:#d0d7de;stroke-width:1}.end{text-anchor:end}.middle{text-anchor:middle}
.curve{stroke:#0072b2;stroke-width:2;fill:none}.base{fill:#0072b2}.idea{fill:#d55e00}
@media (prefers-color-scheme:dark){text{fill:#e6edf3}.paper{fill:#0d1117}.faint{stroke:#30363d}
.curve{stroke:#56b4e9}.base{fill:#56b4e9}.idea{fill:#f0913a}}
</style>"""
WIDTH, HEIGHT, LEFT, RIGHT, TOP, BOTTOM = 640, 400, 64, 16, 44, 44
COLUMNS, ROWS = 60, 14
ROOM = 0.12
"""Of the width, for a number on the axis."""


@dataclass(frozen=True)
class Frame:
    """What is drawn, and how data becomes places: both axes from 0 to 1, compute on a logarithmic scale."""

    points: tuple[tuple[float, float, bool], ...]
    """Compute, bits per byte, whether it is the baseline's."""
    curve: tuple[tuple[float, float], ...]

    @classmethod
    def of(cls, board: TrackComparison, results: Sequence[RunResult]) -> Frame:
        points = [
            (compute, result.bits_per_byte, result.entry == board.baseline)
            for result in results
            if (compute := result.compute(board.axis)) is not None
        ]
        ladder = board.ladder
        xs = np.linspace(float(ladder.lowest), float(ladder.highest), 60)
        losses = [float(loss) for loss in ladder.loss_at(xs)]
        curve = [(ladder.full * math.exp(x), loss) for x, loss in zip(xs, losses, strict=True)]
        return cls(tuple(points), tuple(curve) if ladder.degree else ())

    def across(self, compute: float) -> float:
        return share(math.log(compute), [math.log(point[0]) for point in (*self.points, *self.curve)])

    def up(self, loss: float) -> float:
        return share(loss, [point[1] for point in (*self.points, *self.curve)])

    def computes(self) -> list[float]:
        """Computes to name on the axis: of the points, those that leave their names room."""
        named: list[float] = []
        for compute in sorted(point[0] for point in self.points):
            if not named or self.across(compute) - self.across(named[-1]) > ROOM:
                named.append(compute)
        return named

    def losses(self) -> list[float]:
        found = [point[1] for point in self.points]
        return [min(found), (min(found) + max(found)) / 2, max(found)]


def share(value: float, among: Sequence[float]) -> float:
    """Where a value lies between the least and the greatest, with a little room at both ends."""
    low, high = min(among), max(among)
    room = (high - low) * 0.04 or 1.0
    return (value - low + room) / (high - low + 2 * room)


def svg(frame: Frame, title: str, baseline: str, idea: str, unit: str) -> str:
    def x(compute: float) -> float:
        return LEFT + frame.across(compute) * (WIDTH - LEFT - RIGHT)

    def y(loss: float) -> float:
        return HEIGHT - BOTTOM - frame.up(loss) * (HEIGHT - TOP - BOTTOM)

    path = " ".join(f"{x(compute):.1f},{y(loss):.1f}" for compute, loss in frame.curve)
    dots = [
        f'<circle cx="{x(compute):.1f}" cy="{y(loss):.1f}" r="4.5" class="{"base" if own else "idea"}"/>'
        for compute, loss, own in frame.points
    ]
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" width="{WIDTH}" role="img">',
            f"<title>{escape(title)}</title>",
            STYLE,
            f'<rect class="paper" width="{WIDTH}" height="{HEIGHT}"/>',
            *axes(frame, x, y, unit),
            f'<polyline class="curve" points="{path}"/>',
            *dots,
            *legend(baseline, idea),
            "</svg>\n",
        ]
    )


def axes(frame: Frame, x: Callable[[float], float], y: Callable[[float], float], unit: str) -> list[str]:
    floor = HEIGHT - BOTTOM
    drawn = [
        f'<line class="faint" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y(loss):.1f}" y2="{y(loss):.1f}"/>'
        f'<text class="end" x="{LEFT - 8}" y="{y(loss) + 4:.1f}">{loss:.3f}</text>'
        for loss in frame.losses()
    ]
    drawn += [
        f'<text class="middle" x="{x(compute):.1f}" y="{floor + 18}">{compute:.2g}</text>'
        for compute in frame.computes()
    ]
    return [*drawn, f'<text class="middle" x="{(LEFT + WIDTH) / 2:.0f}" y="{HEIGHT - 8}">training {unit}</text>']


def legend(baseline: str, idea: str) -> list[str]:
    return [
        *label(LEFT, "base", baseline),
        *label(LEFT + 120, "idea", idea),
        f'<text class="end" x="{WIDTH - RIGHT}" y="24">bits per byte</text>',
    ]


def label(x: int, kind: str, name: str) -> list[str]:
    return [f'<circle class="{kind}" cx="{x}" cy="20" r="4.5"/>', f'<text x="{x + 10}" y="24">{escape(name)}</text>']


def text(frame: Frame) -> str:
    """The same in characters: `·` the baseline's curve, `o` its runs, `x` the idea's."""
    cells = [[" "] * COLUMNS for _ in range(ROWS)]

    def put(compute: float, loss: float, mark: str) -> None:
        column, row = int(frame.across(compute) * COLUMNS), int((1 - frame.up(loss)) * ROWS)
        cells[min(row, ROWS - 1)][min(column, COLUMNS - 1)] = mark

    for compute, loss in frame.curve:
        put(compute, loss, "·")
    for compute, loss, own in sorted(frame.points, key=lambda point: not point[2]):
        put(compute, loss, "o" if own else "x")
    high, low = frame.losses()[2], frame.losses()[0]
    labels = {0: f"{high:.3f}", ROWS - 1: f"{low:.3f}"}
    return "\n".join(f"{labels.get(number, ''):>7} |{''.join(row).rstrip()}" for number, row in enumerate(cells))
