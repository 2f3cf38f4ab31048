"""Multipliers from losses and the ladder, their intervals, and how many more runs would resolve a comparison.

ln CM = x* + ln(C_full / C_v) with L_b(x*) = L_v, and its variance is [sigma^2 / n_v + v + g' S g] / L_b'(x*)^2,
v being that of the mean look-ahead correction.
Arrays have an axis of entries, or of simulated nights.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from trainer.scoring.multiplier.ladder import Array, Ladder, build_monomials

CONFIDENCE = 0.95  # of the two-sided interval of every multiplier
MAX_SLOPE_VARIATION = 0.10  # largest coefficient of variation of the slope for which multipliers are estimated
MAX_EXTRA_SEEDS = 50  # if more runs than this are needed, more seeds do not resolve it


@dataclass(frozen=True)
class MultiplierEstimates:
    """Multipliers of mean losses on the baseline's curve. All arrays [...]."""

    x: Array
    """x*: ln of the compute that the baseline needs, over the full budget. NaN if the curve never has this loss."""
    log_multiplier: Array
    slope: Array  # L_b'(x*)
    runs: Array
    noise: Array  # variance of the mean loss in units of sigma^2: 1 / runs, and that of the look-ahead correction
    error: Array  # standard error of ln CM. NaN if sigma is unknown.
    slope_variation: Array  # coefficient of variation of the slope

    def __getitem__(self, index: object) -> MultiplierEstimates:
        """Index all arrays at once."""
        parts = (self.x, self.log_multiplier, self.slope, self.runs, self.noise, self.error, self.slope_variation)
        return MultiplierEstimates(*(part[index] for part in parts))  # type: ignore[call-overload]

    def add_runs(self, extra: int) -> Array:
        """Return the `noise` with so many more runs like these."""
        return self.noise * self.runs / (self.runs + extra)

    def interval(self, ladder: Ladder, confidence: float = CONFIDENCE) -> tuple[Array, Array]:
        """Return the two-sided interval of CM."""
        width = ladder.quantile((1 + confidence) / 2) * self.error
        with np.errstate(over="ignore"):  # an infinite upper end is reported as null
            return np.exp(self.log_multiplier - width), np.exp(self.log_multiplier + width)

    def lower_bound(self, ladder: Ladder, level: float) -> Array:
        """Return the one-sided lower bound of CM."""
        return np.exp(self.log_multiplier - ladder.quantile(level) * self.error)


def estimate_multipliers(
    ladder: Ladder, loss: Array, compute: npt.ArrayLike, runs: npt.ArrayLike, variance: npt.ArrayLike = 0.0
) -> MultiplierEstimates:
    """Estimate the multipliers of mean losses [...].

    `compute` of each run, number of `runs`, `variance` of the mean look-ahead correction: [...] or a scalar.
    """
    x, count = ladder.find_crossing(loss), np.broadcast_to(np.asarray(runs, dtype=float), loss.shape)
    slope = ladder.slope_at(x)
    with np.errstate(divide="ignore", invalid="ignore"):
        noise = 1 / count + np.asarray(variance) / ladder.sigma**2
        error = ladder.sigma * np.sqrt(noise + ladder.leverage(x)) / np.abs(slope)
    log_multiplier = x - np.log(np.asarray(compute) / ladder.full)
    return MultiplierEstimates(x, log_multiplier, slope, count, noise, error, ladder.slope_variation(x))


def compute_log_ratio(ladder: Ladder, one: MultiplierEstimates, other: MultiplierEstimates) -> tuple[Array, Array]:
    """Return ln(CM_one / CM_other) and its standard error."""
    variance = one.noise / one.slope**2 + other.noise / other.slope**2 + compute_curve_variance(ladder, one, other)
    return one.log_multiplier - other.log_multiplier, ladder.sigma * np.sqrt(variance)


def compute_curve_variance(ladder: Ladder, one: MultiplierEstimates, other: MultiplierEstimates) -> Array:
    """Variance that the curve adds to ln(CM_one / CM_other), in units of sigma^2.

    Both use the same curve, so nearly all of its error cancels between neighbors.
    """
    shift = build_monomials(one.x) / one.slope[..., None] - build_monomials(other.x) / other.slope[..., None]
    return ladder.quadratic_form(shift)


def count_seeds_against_baseline(ladder: Ladder, one: MultiplierEstimates) -> int | None:
    """Return how many extra runs exclude 1 from the interval at the same multiplier; None if too many."""
    max_error = one.log_multiplier * one.slope / (ladder.quantile((1 + CONFIDENCE) / 2) * ladder.sigma)
    max_noise = float(max_error**2 - ladder.leverage(one.x))
    return find_fewest_runs(lambda extra: float(one.add_runs(extra)) < max_noise)


def count_seeds_between(ladder: Ladder, one: MultiplierEstimates, others: MultiplierEstimates) -> int | None:
    """Return how many extra runs of each entry resolve at least one tie with the others [n]; None if too many."""
    max_error = (one.log_multiplier - others.log_multiplier) / (ladder.quantile((1 + CONFIDENCE) / 2) * ladder.sigma)
    max_variance = max_error**2 - compute_curve_variance(ladder, one, others)
    return find_fewest_runs(
        lambda extra: bool(
            np.any(one.add_runs(extra) / one.slope**2 + others.add_runs(extra) / others.slope**2 < max_variance)
        )
    )


def find_fewest_runs(is_enough: Callable[[int], bool]) -> int | None:
    return next((extra for extra in range(MAX_EXTRA_SEEDS + 1) if is_enough(extra)), None)
