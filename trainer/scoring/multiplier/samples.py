"""Grouping of an entry's runs by rung, one for each seed."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from trainer.scoring.multiplier.ladder import Array, assign_rungs
from trainer.scoring.multiplier.results import Axis, RunResult


@dataclass(frozen=True)
class RungSample:
    """An entry's runs at one rung, one for each seed."""

    compute: Array
    loss: Array
    variance: Array  # of the look-ahead correction in each loss

    @property
    def mean_compute(self) -> float:
        """Geometric mean: within a rung the curve is linear in ln C."""
        if np.ptp(self.compute) == 0:
            return float(self.compute[0])
        return math.exp(math.fsum(np.log(self.compute)) / len(self.compute))

    @property
    def mean_loss(self) -> float:
        return math.fsum(self.loss) / len(self.loss)

    @property
    def mean_variance(self) -> float:
        """Variance of the mean loss by the look-ahead corrections."""
        return math.fsum(self.variance) / len(self.variance) ** 2


def group_by_rung(results: Sequence[RunResult], axis: Axis) -> list[RungSample]:
    """Return one entry's runs by rung, smallest first; runs with the same seed at one rung are averaged.

    Runs are sorted, so that the result does not depend on their order.
    """
    runs = sorted(
        (compute, run.seed, run.bits_per_byte, run.look_ahead_stderr**2)
        for run in results
        if (compute := run.compute(axis)) is not None
    )
    if not runs:
        return []
    labels = assign_rungs(np.array([run[0] for run in runs]))
    samples = []
    for label in range(labels.max() + 1):
        here = [run for run, rung in zip(runs, labels, strict=True) if rung == label]
        draws = [average_repeats([run for run in here if run[1] == seed]) for seed in sorted({run[1] for run in here})]
        draws.sort()
        samples.append(RungSample(*map(np.array, zip(*draws, strict=True))))
    return samples


def average_repeats(runs: Sequence[tuple[float, int, float, float]]) -> tuple[float, float, float]:
    """Return compute, loss and variance of runs with one seed at one rung."""
    if len(runs) == 1:
        return runs[0][0], *runs[0][2:]
    sample = RungSample(*(np.array([run[i] for run in runs]) for i in (0, 2, 3)))
    return sample.mean_compute, sample.mean_loss, sample.mean_variance


def find_most_repeated_compute(samples: Sequence[RungSample]) -> float:
    return max(samples, key=lambda sample: (len(sample.loss), sample.mean_compute)).mean_compute


def find_nearest_rung(samples: Sequence[RungSample], full: float) -> RungSample:
    """Return the rung nearest the full budget, since gains shrink with scale; the larger of two equally near ones."""
    return min(samples, key=lambda sample: (round(abs(math.log(sample.mean_compute / full)), 6), -sample.mean_compute))
