"""The plot of `benchmarks.swarm.churn`."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from matplotlib import rc_context
from matplotlib.figure import Figure
from matplotlib.ticker import PercentFormatter

COLORS = {"with": "#0072b2", "without": "#d55e00"}  # distinguishable by color-blind readers (Okabe and Ito)
LABELS = {"with": "With rebalancing", "without": "Without"}


def plot_churn(story: dict[str, Any]) -> Figure:
    """Plot the share of the ideal throughput with and without rebalancing, and below it the number of peers."""
    hours = [(number + 0.5) / 4 for number in range(len(story["peers"]))]
    figure = Figure(figsize=(8, 4.5), layout="constrained")
    figure.suptitle(
        f"{story['visits']} peers join and leave in {story['hours']:g} hours: share of the ideal throughput"
    )
    upper, lower = figure.subplots(2, sharex=True, height_ratios=(3, 1))
    for name in ("without", "with"):
        run = story[name]
        label = f"{LABELS[name]}: {run['of_ideal']:.1%}, {run['of_static']:.1%} of static"
        upper.plot(hours, smooth_shares(run["done"], story["ideal"]["done"]), color=COLORS[name], label=label)
    upper.set(ylim=(0, 1.1), yticks=(0, 0.25, 0.5, 0.75, 1))
    upper.yaxis.set_major_formatter(PercentFormatter(1))
    upper.grid(axis="y", alpha=0.3)
    upper.legend(loc="lower right")
    lower.fill_between(hours, story["peers"], color="#8c959f", alpha=0.35)
    lower.set(xlabel="hours", ylabel="peers", xlim=(0, story["hours"]), ylim=(0, None))
    return figure


def smooth_shares(done: Sequence[int], ideal: Sequence[int]) -> list[float]:
    """Return each quarter hour's share of the ideal, averaged with its neighbors: some tasks end in the next."""
    windows = [slice(max(0, number - 1), number + 2) for number in range(len(done))]
    return [sum(done[window]) / max(1, sum(ideal[window])) for window in windows]


def save_svg(figure: Figure, path: Path) -> None:
    """Write a figure reproducibly: the same figure gives the same bytes."""
    with rc_context({"svg.fonttype": "none", "svg.hashsalt": "dailytrain"}):
        figure.savefig(path, format="svg", metadata={"Date": None})
