"""Draws the outcome of a simulation as one SVG, light and dark: utilization, waits, lost work, fairness."""

from __future__ import annotations

import math
from itertools import accumulate
from pathlib import Path
from typing import Any

from django.template import Context, Template

from benchmarks.pool_simulation.statistics import Outcome, compute_fair_shares
from benchmarks.pool_simulation.workload import CLASSES

TEMPLATE = Path(__file__).with_name("outcome.svg")
# The color-blind safe palette of Okabe and Ito, in the order of `CLASSES`.
COLORS = ("#d55e00", "#000000", "#cc79a7", "#e69f00", "#0072b2", "#56b4e9", "#009e73", "#f0e442", "#999999", "#6a3d9a")


def draw_outcome(outcome: Outcome) -> str:
    title = (
        f"{outcome.nodes:,} nodes, {outcome.days:g} days, seed {outcome.seed}: "
        f"{outcome.utilization:.1%} of the offered hours used, {outcome.lost_work:.2%} of the work lost, "
        f"{outcome.starved} jobs starved, {outcome.jobs_done:,} done"
    )
    charts = {
        "utilization": plot_utilization(outcome, 860, 210),
        "waits": plot_waits(outcome, 320, 270),
        "fairness": plot_fairness(outcome, 340, 270),
    }
    return Template(TEMPLATE.read_text()).render(Context({"title": title, **charts}))


def plot_utilization(outcome: Outcome, width: float, height: float) -> dict[str, Any]:
    """Plot the share of each day's offered hours that each class used."""
    days = len(next(iter(outcome.used_by_day.values()), ()))
    step, bars = width / max(days, 1), []
    for day in range(days):
        shares = [outcome.used_by_day[name][day] for name in CLASSES]
        for share, top, color in zip(shares, accumulate(shares), COLORS, strict=True):
            y, size = round(height * (1 - top), 1), round(height * share, 1)
            bars.append((round(day * step + 1, 1), y, round(max(step - 2, 0), 1), size, color))
    starts = accumulate((26 + 7 * len(name) for name in CLASSES), initial=0)
    lines = [(height * (1 - share), f"{share:.0%}") for share in (0, 0.25, 0.5, 0.75, 0.9, 1)]
    legend = list(zip(starts, CLASSES, COLORS, strict=False))
    return {"width": width, "height": height, "lines": lines, "bars": bars, "legend": legend}


def plot_waits(outcome: Outcome, width: float, height: float) -> dict[str, Any]:
    """Plot the hours until the first lease: the median, and the 95th percentile behind it. Logarithmic."""
    longest = max((outcome.get_wait(name, 0.95) for name in outcome.waits), default=1.0)
    decades = max(1, math.ceil(math.log10(max(longest, 1.0))) + 2)  # from 0.01 h up

    def scale(name: str, share: float) -> float:
        hours = max(outcome.get_wait(name, share), 0.01)
        return round(width * min((math.log10(hours) + 2) / decades, 1.0), 1)

    step = height / max(len(outcome.waits), 1)
    return {
        "height": height,
        "lines": [(round(width * decade / decades, 1), f"{10.0 ** (decade - 2):g}") for decade in range(decades + 1)],
        "bars": [
            (round((number + 0.5) * step, 1), name, scale(name, 0.95), scale(name, 0.5))
            for number, name in enumerate(outcome.waits)
        ],
        "top": round(-0.3 * step, 1),
        "thickness": round(0.6 * step, 1),
    }


def plot_fairness(outcome: Outcome, width: float, height: float) -> dict[str, Any]:
    fair = compute_fair_shares(outcome.authors)
    most = max((requested for requested, _ in outcome.authors), default=1.0)
    highest = max([1.0, *fair, *(received for _, received in outcome.authors)]) * 1.1

    def scale(requested: float, hours: float) -> tuple[float, float]:
        return round(width * requested / most, 1), round(height * (1 - hours / highest), 1)

    quarters = (0.25, 0.5, 0.75, 1)
    return {
        "width": width,
        "height": height,
        "index": f"{outcome.fairness:.3f}",
        "columns": [(width * share, f"{most * share:,.0f} h") for share in quarters],
        "lines": [(height * (1 - share), f"{highest * share:,.0f}") for share in quarters],
        "fair": [scale(requested, share) for (requested, _), share in zip(outcome.authors, fair, strict=True)],
        "received": [scale(requested, received) for requested, received in outcome.authors],
    }
