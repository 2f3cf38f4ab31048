"""The record rule: a new record is significantly better than the baseline and than the current record.

Not covered here: who may confirm a record, where, and with which seeds. Both sides' runs must be confirmation runs
whose number was fixed beforehand: optional stopping breaks the promised error rate.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from trainer.scoring.multiplier.estimates import MAX_SLOPE_VARIATION, estimate_multipliers
from trainer.scoring.multiplier.ladder import Array, Ladder, build_monomials

LEVEL = 0.9995
"""One-sided level of both conditions. At 99.9 % an exact copy of the record would break it once in 1,000 times. The
promise is fewer than that, so the rule uses the two-sided 99.9 % (measured in benchmarks/results/multiplier.md)."""


@dataclass(frozen=True)
class RecordCandidate:
    """An entry's mean loss over its runs at one compute; the loss may have an axis of simulated nights."""

    loss: Array
    compute: float
    runs: int
    variance: float = 0.0  # of the mean look-ahead correction


@dataclass(frozen=True)
class RecordTest:
    """Both conditions of a record."""

    bound: Array  # one-sided lower bound of CM over the baseline; must exceed 1
    statistic: Array | None  # t against the record; None if there is no record yet
    threshold: float  # t must exceed this

    @property
    def beats_baseline(self) -> npt.NDArray[np.bool_]:
        return self.bound > 1

    @property
    def beats_record(self) -> npt.NDArray[np.bool_]:
        """False means tied with the record, or worse."""
        if self.statistic is None:
            return np.ones_like(self.bound, dtype=np.bool_)
        return self.statistic > self.threshold

    @property
    def is_record(self) -> npt.NDArray[np.bool_]:
        return self.beats_baseline & self.beats_record


def run_record_test(
    ladder: Ladder, new: RecordCandidate, record: RecordCandidate | None, level: float = LEVEL
) -> RecordTest:
    """Test `new` against the baseline and the record.

    Unknown noise, a loss off the curve and a poorly known slope never make a record: comparisons with NaN are false.
    """
    estimates = estimate_multipliers(ladder, new.loss, new.compute, new.runs, new.variance)
    bound = np.where(estimates.slope_variation <= MAX_SLOPE_VARIATION, estimates.lower_bound(ladder, level), np.nan)
    statistic = None if record is None else compute_record_statistic(ladder, new, record)
    return RecordTest(bound, statistic, ladder.quantile(level))


def compute_record_statistic(ladder: Ladder, new: RecordCandidate, record: RecordCandidate) -> Array:
    """t = (L_rec - L_new + s ln(C_rec / C_new)) / sqrt(sigma^2 / n_new + v_new + sigma^2 / n_rec + v_rec).

    s is the baseline's decrease in loss per e-fold of compute: the secant from the record's position to an equal
    multiplier at the challenger's compute. With the slope at a single point, a challenger at another compute than the
    record's wins falsely up to twice as often. The curve's error between the two positions is added to the variance; it
    is 0 at equal compute.
    """
    x = ladder.find_crossing(record.loss)
    equal = x + math.log(new.compute / record.compute)
    propagation = ladder.slope_at(equal) / ladder.slope_at(x)  # of an error in L_rec to `equal`
    gradient = build_monomials(equal) - propagation[..., None] * build_monomials(x)
    gain = ladder.loss_at(equal) - new.loss
    with np.errstate(divide="ignore", invalid="ignore"):
        noises = [1 / each.runs + each.variance / ladder.sigma**2 for each in (new, record)]
        variance = noises[0] + propagation**2 * noises[1] + ladder.quadratic_form(gradient)
        return gain / (ladder.sigma * np.sqrt(variance))
