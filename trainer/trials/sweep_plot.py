"""Draw the multipliers of a sweep with their intervals."""

from __future__ import annotations

from pathlib import Path

from matplotlib import rc_context
from matplotlib.figure import Figure

from trainer.scoring.multiplier import EntryMultiplier, TrackComparison
from trainer.trials.plot import BASELINE_COLOR, IDEA_COLOR

ROW_INCHES, MARGIN_INCHES = 0.3, 1.3


def save_multiplier_svg(comparison: TrackComparison, path: Path, title: str) -> None:
    """Write a row for each entry that has a multiplier: a dot and its 95 % interval, the best on top."""
    rows = [row for row in comparison.entries if row.cm is not None][::-1]
    figure = Figure(figsize=(7.2, MARGIN_INCHES + ROW_INCHES * len(rows)), layout="constrained")
    axes = figure.add_subplot(title=title, xlabel="compute multiplier, 95 % interval", xscale="log")
    axes.axvline(1, color=BASELINE_COLOR)
    for height, row in enumerate(rows):
        axes.plot([row.cm], [height], "o", color=IDEA_COLOR)
        if row.low is not None and row.high is not None:
            axes.plot([row.low, row.high], [height, height], color=IDEA_COLOR)
    axes.set_yticks(range(len(rows)), [describe_row(row) for row in rows])
    axes.xaxis.set_major_formatter("{x:.2f}")
    axes.xaxis.set_minor_formatter("{x:.2f}")
    axes.grid(axis="x", which="both", alpha=0.3)
    with rc_context({"svg.fonttype": "none", "svg.hashsalt": "dailytrain"}):
        figure.savefig(path, format="svg", metadata={"Date": None})


def describe_row(row: EntryMultiplier) -> str:
    return f"{row.entry} ({row.runs})" + (" *" if row.extrapolated else "")
