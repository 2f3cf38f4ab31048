"""Simulated tracks with known true multipliers, as records like those of the board."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from trainer.scoring.multiplier import TrackComparison, compare_entries, parse_results

FULL = 1e18
SIGMA = 0.00034
LADDER = ((1 / 8, 3), (1 / 4, 3), (1 / 2, 3), (1.0, 10), (2.0, 3))

Record = dict[str, Any]


def curve(x: float) -> float:
    """Return the baseline's bits per byte at `x`, the logarithm of its share of the budget."""
    return 1.02 - 0.034 * x + 0.0014 * x * x


class Night:
    """Simulated runs of entries with known multipliers."""

    def __init__(self, seed: int = 0, sigma: float = SIGMA) -> None:
        self.rng, self.sigma, self.records = np.random.default_rng(seed), sigma, list[Record]()

    def ladder(self, rungs: tuple[tuple[float, int], ...] = LADDER, name: str = "gpt") -> Night:
        for at, seeds in rungs:
            self.entry(name, 1.0, seeds, at=at)
        return self

    def entry(self, name: str, multiplier: float, seeds: int, at: float = 1.0, sigma: float | None = None) -> Night:
        """Add runs with this true multiplier at `at` full budgets."""
        noise = (self.sigma if sigma is None else sigma) * self.rng.standard_normal(seeds)
        for seed in range(seeds):
            loss = curve(math.log(at * multiplier)) + float(noise[seed])
            self.records.append(record(name, seed, at, loss))
        return self

    def board(self, baseline: str = "gpt", **options: Any) -> TrackComparison:
        return compare_entries(parse_results(self.records), baseline, **options)


def record(name: str, seed: int, at: float, loss: float) -> Record:
    return {"entry": name, "seed": seed, "flops": FULL * at, "seconds": 10_800 * at, "bits_per_byte": loss}
