"""When a multiplier is a record: clearly over the baseline, and clearly over the record.

Not covered here: who may confirm a record, where, and with which seeds. Both sides' runs must be confirmation runs
whose number was fixed beforehand: looking after each run and stopping at a lucky moment breaks the promised error rate.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from trainer.scoring.multiplier.estimates import MAX_SLOPE_VARIATION, estimate_multipliers
from trainer.scoring.multiplier.ladder import Array, Ladder, monomials

LEVEL = 0.9995
"""One-sided level of both conditions. At 99.9 % a perfect copy of the record would break it once in 1,000 times
exactly; the promise is fewer than that, so the rule asks for the two-sided 99.9 % (measured in docs/multiplier.md)."""


@dataclass(frozen=True)
class RecordCandidate:
    """An entry's mean loss over its runs at one compute; the loss may have an axis of simulated nights."""

    loss: Array
    compute: float
    runs: int


@dataclass(frozen=True)
class RecordTest:
    """Both conditions of a record."""

    bound: Array
    """Lower one-sided bound of CM over the baseline; has to be above 1."""
    statistic: Array | None
    """t against the record; None where there is no record yet."""
    threshold: float
    """What t has to be beyond."""

    @property
    def clears_baseline(self) -> npt.NDArray[np.bool_]:
        return self.bound > 1

    @property
    def clears_record(self) -> npt.NDArray[np.bool_]:
        """False means: tied with the record, or behind it."""
        if self.statistic is None:
            return np.ones_like(self.bound, dtype=np.bool_)
        return self.statistic > self.threshold

    @property
    def won(self) -> npt.NDArray[np.bool_]:
        return self.clears_baseline & self.clears_record


def run_record_test(
    ladder: Ladder, new: RecordCandidate, record: RecordCandidate | None, level: float = LEVEL
) -> RecordTest:
    """Judge `new` against the baseline and the record.

    Unknown noise, a loss off the curve or a poorly known slope win nothing: the comparisons with NaN fail.
    """
    reading = estimate_multipliers(ladder, new.loss, new.compute, new.runs)
    bound = np.where(reading.doubt <= MAX_SLOPE_VARIATION, reading.lower_bound(ladder, level), np.nan)
    statistic = None if record is None else compute_record_statistic(ladder, new, record)
    return RecordTest(bound, statistic, ladder.quantile(level))


def compute_record_statistic(ladder: Ladder, new: RecordCandidate, record: RecordCandidate) -> Array:
    """t = (L_rec - L_new + s ln(C_rec / C_new)) / (sigma sqrt(1/n_new + 1/n_rec)).

    s is the baseline's fall in loss for each e-fold of compute, taken as the secant from where the record stands to
    where an equal multiplier at the challenger's compute would stand: with the slope of a single point, a challenger at
    another compute than the record's wins falsely up to twice as often. The curve's own error over that stretch is
    added to the variance. At equal compute all of it vanishes.
    """
    x = ladder.crossing(record.loss)
    equal = x + math.log(new.compute / record.compute)
    carried = ladder.slope_at(equal) / ladder.slope_at(x)  # what an error in L_rec becomes over there
    gradient = monomials(equal) - carried[..., None] * monomials(x)
    gain = ladder.loss_at(equal) - new.loss
    with np.errstate(divide="ignore", invalid="ignore"):
        variance = 1 / new.runs + carried**2 / record.runs + ladder.quadratic(gradient)
        return gain / (ladder.sigma * np.sqrt(variance))
