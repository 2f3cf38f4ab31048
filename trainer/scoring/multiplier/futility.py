"""Futility: whether a run in training still has a chance to end above the baseline by enough.

A run and a ladder run of its seed read the same data in the same order. At a look, a part of the budget, the distance
d = (L_v - L_b) / |L_b'| + ln(C_v / C_b) says how much compute the run is behind, by their losses on dev and the slope
of the ladder at that budget. If nothing changes, its multiplier ends at exp(-d). What changes is Student's
t with the ladder's degrees of freedom and the scale `error`, of three parts: the noise of two seeds, what curves of
other models moved relative to the baseline's on recorded runs (benchmarks/results/early-stops.md), and a share of the
distance itself.

A run stops where its chance of `ENOUGH` is below `LEVEL` by this predictive distribution (stochastic curtailment: Lan,
Simon and Halperin 1982, Sequential Analysis 1:207; Spiegelhalter, Freedman and Blackburn 1986, Controlled Clinical
Trials 7:8). The looks share the level equally, so that all of them together stop at most this share of the runs that
would end at exactly `ENOUGH`, however they depend on each other.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from trainer.scoring.multiplier.ladder import RUNG_GAP, Ladder

LOOKS = (1 / 8, 1 / 4, 1 / 2)
LOOK_WIDTH = 1 / 16
"""An evaluation this much of the budget after a look, or more, is not that of the look."""
ENOUGH = 1.02
LEVEL = 0.01
NOISE = 0.8
"""Standard deviation of what changes until the end, in units of sqrt(2) sigma, by which two seeds differ."""
CHANGE = {1 / 8: 0.06, 1 / 4: 0.05, 1 / 2: 0.03}
"""Standard deviation of how far a run with the baseline's recipe moves until its end, in ln of compute: the root mean
square of the eight recorded ones, rounded up."""
DRIFT = {1 / 8: 0.2, 1 / 4: 0.15, 1 / 2: 0.1}
"""The same as a share of the distance: a guess."""
RECOVERY = {1 / 8: 0.4, 1 / 4: 0.7, 1 / 2: 0.8}
"""How far a run whose recipe differs from the baseline's may come back, in ln of compute. The recorded sweeps of rates,
schedules and batches came back by at most 0.22, 0.49 and 0.55."""


class DevLoss(NamedTuple):
    compute: float
    bits_per_byte: float


@dataclass(frozen=True)
class Look:
    behind: float
    """Share of its compute that the run has lost: 1 - CM if nothing changes. Below 0 it is ahead."""
    error: float
    """Standard error of that as a forecast."""
    chance: float
    """That its multiplier ends at `ENOUGH` or more."""

    @property
    def is_futile(self) -> bool:
        return self.chance < LEVEL / len(LOOKS)


def select_looks(points: Sequence[DevLoss], full: float) -> dict[float, DevLoss]:
    """Return the first evaluation at or after each look, if there is one close to it. `points`: in order."""
    found: dict[float, DevLoss] = {}
    for look in LOOKS:
        reached = [point for point in points if look * full * (1 - 1e-6) <= point.compute < (look + LOOK_WIDTH) * full]
        found |= {look: reached[0]} if reached else {}
    return found


def compare_at_look(ladder: Ladder, look: float, own: DevLoss, twin: DevLoss, *, same_recipe: bool) -> Look | None:
    """Compare a run with the ladder run of its seed; None if the ladder has no slope there, or no noise."""
    from scipy.special import stdtr  # type: ignore[import-untyped]  # here, because the site imports this module

    x, end = np.log(own.compute / ladder.full), np.zeros(())
    slope, last_slope = ladder.slope_at(np.maximum(x, ladder.lowest)), ladder.slope_at(end)
    is_near = x > ladder.lowest - math.log(RUNG_GAP)
    if not (is_near and slope < 0 and last_slope < 0 and ladder.freedom and ladder.has_noise):
        return None
    distance = float((twin.bits_per_byte - own.bits_per_byte) / slope + np.log(own.compute / twin.compute))
    noise = NOISE * math.sqrt(2) * float(ladder.sigma / last_slope)
    scale = math.hypot(noise, CHANGE[look], DRIFT[look] * distance)
    recovery = 0.0 if same_recipe else RECOVERY[look]
    chance = float(stdtr(ladder.freedom, (recovery - distance - math.log(ENOUGH)) / scale))
    multiplier = math.exp(-distance)
    return Look(1 - multiplier, multiplier * scale, chance)
