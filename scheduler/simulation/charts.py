"""Draws the outcome of a simulation as one SVG, light and dark: utilization, waits, lost work, fairness."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from html import escape

from scheduler.simulation.statistics import Outcome, compute_fair_shares
from scheduler.simulation.workload import CLASSES

WIDTH, HEIGHT = 960, 720
STYLE = """<style>
text{font:13px system-ui,sans-serif;fill:#24292f;font-variant-numeric:tabular-nums}
.title{font-weight:600}.small{font-size:12px;fill:#57606a}.end{text-anchor:end}.middle{text-anchor:middle}
.paper{fill:#fff}.hair{stroke:#8c959f;stroke-width:1;fill:none}.faint{stroke:#d0d7de;stroke-width:1}
.bar{fill:#0072b2}.light{fill:#0072b2;opacity:.35}.dot{fill:#0072b2}.fair{stroke:#d55e00;stroke-width:2;fill:none}
@media (prefers-color-scheme:dark){text{fill:#e6edf3}.small{fill:#9198a1}.paper{fill:#0d1117}.faint{stroke:#30363d}
.hair{stroke:#6e7681}.bar,.light,.dot{fill:#56b4e9}.fair{stroke:#f0913a}}
</style>"""
# The color-blind safe palette of Okabe and Ito, in the order of `CLASSES`.
COLORS = ("#d55e00", "#000000", "#cc79a7", "#e69f00", "#0072b2", "#56b4e9", "#009e73", "#f0e442", "#999999", "#6a3d9a")


def draw_outcome(outcome: Outcome) -> str:
    title = (
        f"{outcome.nodes:,} nodes, {outcome.days:g} days, seed {outcome.seed}: "
        f"{outcome.utilization:.1%} of the offered hours used, {outcome.lost_work:.2%} of the work lost, "
        f"{outcome.starved} jobs starved, {outcome.jobs_done:,} done"
    )
    parts = [
        format_text(40, 34, title, "title"),
        *draw_utilization(outcome, 60, 70, 860, 210),
        *draw_waits(outcome, 150, 385, 320, 270),
        *draw_fairness(outcome, 580, 385, 340, 270),
    ]
    head = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" width="{WIDTH}" role="img">'
    paper = f'<rect class="paper" width="{WIDTH}" height="{HEIGHT}"/>'
    return "\n".join([head, f"<title>{escape(title)}</title>", STYLE, paper, *parts, "</svg>"]) + "\n"


def draw_utilization(outcome: Outcome, left: float, top: float, width: float, height: float) -> Iterator[str]:
    """Draw the share of each day's offered hours that each class used."""
    yield format_text(left - 20, top - 10, "Used, of the hours offered on each day", "")
    for share in (0, 0.25, 0.5, 0.75, 0.9, 1):
        y = top + height * (1 - share)
        yield format_line(left, y, left + width, y, "faint")
        yield format_text(left - 8, y + 4, f"{share:.0%}", "small end")
    days = len(next(iter(outcome.used_by_day.values()), ()))
    across = width / max(days, 1)
    for day in range(days):
        below = 0.0
        for name, color in zip(CLASSES, COLORS, strict=True):
            share = outcome.used_by_day[name][day]
            y = top + height * (1 - below - share)
            yield format_bar(left + day * across + 1, y, across - 2, height * share, f'fill="{color}"')
            below += share
    yield from draw_legend(left, top + height + 24)


def draw_legend(x: float, y: float) -> Iterator[str]:
    for name, color in zip(CLASSES, COLORS, strict=True):
        yield format_bar(x, y - 10, 10, 10, f'fill="{color}" stroke="#8c959f"')
        yield format_text(x + 14, y, name, "small")
        x += 26 + 7 * len(name)


def draw_waits(outcome: Outcome, left: float, top: float, width: float, height: float) -> Iterator[str]:
    """Draw the hours until the first lease: the median, and the 95th percentile behind it. Logarithmic."""
    yield format_text(left - 110, top - 18, "Hours until a job starts: median and 95 %", "")
    longest = max((outcome.get_wait(name, 0.95) for name in outcome.waits), default=1.0)
    decades = max(1, math.ceil(math.log10(max(longest, 1.0))) + 2)  # from 0.01 h up

    def across(hours: float) -> float:
        return width * min(max(math.log10(max(hours, 0.01)) + 2, 0.0) / decades, 1.0)

    for decade in range(decades + 1):
        x = left + width * decade / decades
        yield format_line(x, top, x, top + height, "faint")
        yield format_text(x, top + height + 18, f"{10.0 ** (decade - 2):g}", "small middle")
    step = height / max(len(outcome.waits), 1)
    for number, name in enumerate(outcome.waits):
        y = top + number * step
        yield format_text(left - 10, y + step / 2 + 4, name, "end")
        yield format_bar(left, y + step * 0.2, across(outcome.get_wait(name, 0.95)), step * 0.6, 'class="light"')
        yield format_bar(left, y + step * 0.2, across(outcome.get_wait(name, 0.5)), step * 0.6, 'class="bar"')


def draw_fairness(outcome: Outcome, left: float, top: float, width: float, height: float) -> Iterator[str]:
    """Draw each author's requested, received and fair hours."""
    yield format_text(
        left - 40, top - 18, f"Requested and received work, by author; fairness {outcome.fairness:.3f}", ""
    )
    most = max((requested for requested, _ in outcome.authors), default=1.0)
    fair = compute_fair_shares(outcome.authors)
    highest = max([1.0, *fair, *(received for _, received in outcome.authors)]) * 1.1
    yield format_line(left, top + height, left + width, top + height, "hair")
    yield format_line(left, top, left, top + height, "hair")
    for number in range(1, 5):
        yield format_text(left + width * number / 4, top + height + 18, f"{most * number / 4:,.0f} h", "small middle")
        yield format_text(left - 6, top + height * (1 - number / 4) + 4, f"{highest * number / 4:,.0f}", "small end")
    points = [
        (left + width * requested / most, top + height * (1 - share / highest))
        for (requested, _), share in zip(outcome.authors, fair, strict=True)
    ]
    yield format_path(points, "fair")
    for requested, received in outcome.authors:
        yield format_dot(left + width * requested / most, top + height * (1 - received / highest), "dot")


# --- shapes -----------------------------------------------------------------------------------------------------------


def format_text(x: float, y: float, words: str, kind: str) -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" class="{kind}">{escape(words)}</text>'


def format_line(x1: float, y1: float, x2: float, y2: float, kind: str) -> str:
    return f'<line x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}" class="{kind}"/>'


def format_bar(x: float, y: float, width: float, height: float, look: str) -> str:
    return f'<rect x="{x:.1f}" y="{y:.1f}" width="{max(width, 0):.1f}" height="{max(height, 0):.1f}" {look}/>'


def format_dot(x: float, y: float, kind: str) -> str:
    return f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3.5" class="{kind}"/>'


def format_path(points: Sequence[tuple[float, float]], kind: str) -> str:
    return f'<polyline points="{" ".join(f"{x:.1f},{y:.1f}" for x, y in points)}" class="{kind}"/>'
