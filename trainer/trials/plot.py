"""Plot loss against compute: the runs and the curve of the baseline, and the runs of the idea."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from matplotlib import rc_context
from matplotlib.figure import Figure

from trainer.scoring.multiplier import RunResult, TrackComparison

COLUMNS, ROWS = 60, 14  # of the plot in a terminal
BASELINE_COLOR, IDEA_COLOR = "#0072b2", "#d55e00"  # distinguishable by color-blind readers (Okabe and Ito)


@dataclass(frozen=True)
class LossPlot:
    """Compute and bits per byte, [N, 2] each, of the baseline's runs, the idea's runs and the baseline's curve."""

    baseline: np.ndarray
    idea: np.ndarray
    curve: np.ndarray

    @classmethod
    def from_comparison(cls, comparison: TrackComparison, results: Sequence[RunResult]) -> LossPlot:
        def select(is_baseline: bool) -> np.ndarray:
            points = [
                (compute, result.bits_per_byte)
                for result in results
                if (result.entry == comparison.baseline) == is_baseline
                and (compute := result.compute(comparison.axis)) is not None
            ]
            return np.array(points).reshape(-1, 2)

        ladder = comparison.ladder
        x = np.linspace(float(ladder.lowest), float(ladder.highest), 60 if ladder.degree else 0)
        curve = np.stack([ladder.full * np.exp(x), np.array([float(loss) for loss in ladder.loss_at(x)])], axis=1)
        return cls(select(True), select(False), curve)

    def save_svg(self, path: Path, title: str, baseline: str, idea: str, unit: str) -> None:
        figure = Figure(figsize=(6.4, 4.0), layout="constrained")
        axes = figure.add_subplot(title=title, xlabel=f"training {unit}", ylabel="bits per byte", xscale="log")
        axes.plot(*self.curve.T, color=BASELINE_COLOR)
        axes.scatter(*self.baseline.T, color=BASELINE_COLOR, label=baseline)
        axes.scatter(*self.idea.T, color=IDEA_COLOR, label=idea)
        axes.grid(axis="y", alpha=0.3)
        axes.legend()
        with rc_context({"svg.fonttype": "none", "svg.hashsalt": "dailytrain"}):
            figure.savefig(path, format="svg", metadata={"Date": None})

    def to_text(self) -> str:
        """Plot with characters: `·` for the baseline's curve, `o` for its runs, `x` for the idea's."""
        points = np.concatenate([self.curve, self.baseline, self.idea])
        scaled = np.stack([np.log(points[:, 0]), -points[:, 1]], axis=1)
        low, span = scaled.min(axis=0), np.maximum(np.ptp(scaled, axis=0), 1e-9)
        cells = np.round((scaled - low) / span * (COLUMNS - 1, ROWS - 1)).astype(int)
        marks = ["·"] * len(self.curve) + ["o"] * len(self.baseline) + ["x"] * len(self.idea)
        grid = np.full((ROWS, COLUMNS), " ")
        for (column, row), mark in zip(cells, marks, strict=True):
            grid[row, column] = mark
        labels = {0: f"{points[:, 1].max():.3f}", ROWS - 1: f"{points[:, 1].min():.3f}"}
        return "\n".join(f"{labels.get(row, ''):>7} |{''.join(line).rstrip()}" for row, line in enumerate(grid))
