"""The plot of `benchmarks.swarm.efficiency`: a column for each link, machines as measured above, far faster below."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import PercentFormatter

from benchmarks.swarm.efficiency_model import LINKS, MANY, USUAL, estimate_efficiency, measured_efficiency, scale_width

SHAPES = {(2, 1): "#0072b2", (2, 4): "#d55e00", (4, 4): "#009e73", (4, 16): "#cc79a7"}  # stages, workers: color
SPEEDUP = 1000  # assumed speed of a GPU, in multiples of the one CPU thread that was measured
LARGE = 2**15  # micro-batches of a step there: four million tokens, as for large models
WIDER = (2, 4, 8, 16)  # multiples of the largest measured width: further widths below, where a swarm starts to pay


def plot_efficiency(story: Mapping[str, Any]) -> Figure:
    """Plot the efficiency of all machines by width. Hollow circles: slower than one process alone."""
    measured = {int(width): row for width, row in story.items()}
    widest = max(measured)
    extended = measured | {widest * times: scale_width(measured[widest], times) for times in WIDER}
    rows = (
        (measured, 1, USUAL, f"each machine one CPU thread, as measured; {USUAL} micro-batches a step"),
        (extended, SPEEDUP, LARGE, f"{SPEEDUP:,} times as fast, like a GPU; {LARGE:,} micro-batches a step"),
    )
    figure = Figure(figsize=(9, 6), layout="constrained")
    figure.suptitle("Efficiency of a swarm by model width, stages x workers and link")
    for part, (costs, speedup, micro_batches, title) in zip(figure.subfigures(2), rows, strict=True):
        part.suptitle(title, fontsize="medium")
        for axes, link in zip(part.subplots(1, len(LINKS), sharey=True), LINKS, strict=True):
            plot_link(axes, costs, link, speedup, micro_batches)
    squares = f"squares: measured, 2 x 1, {MANY} micro-batches; hollow circles: slower than one machine"
    figure.legend(*axes.get_legend_handles_labels(), loc="outside lower center", ncols=len(SHAPES), title=squares)
    return figure


def plot_link(axes: Axes, costs: Mapping[int, Mapping[str, Any]], link: str, speedup: int, micro_batches: int) -> None:
    widths = sorted(costs)
    for (stages, workers), color in SHAPES.items():
        shares = [
            estimate_efficiency(costs[width], width, stages, workers, LINKS[link], speedup, micro_batches)
            for width in widths
        ]
        axes.plot(widths, shares, color=color, label=f"{stages} x {workers}")
        for width, share in zip(widths, shares, strict=True):
            if share * stages * workers < 1:
                axes.plot(width, share, "o", color=color, fillstyle="none")
    for width in widths:
        if speedup == 1 and link in costs[width]:
            axes.plot(width, measured_efficiency(costs[width], link), "s", color="black", markersize=4)
    axes.set_xscale("log", base=2)
    axes.set(title=link, ylim=(0, 1.1), xticks=widths, xticklabels=map(str, widths))
    axes.tick_params(axis="x", labelrotation=45)
    axes.yaxis.set_major_formatter(PercentFormatter(1))
    axes.grid(axis="y", alpha=0.3)
