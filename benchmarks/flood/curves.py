"""Losses of simulated runs: the recorded ladder's law, and how recorded runs moved from each look to their end.

The simulation is that of benchmarks/results/early-stops.md, whose curves these are.
"""

from __future__ import annotations

import json
import math
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.one_card.simulation import SCORE
from trainer.scoring.look_ahead import DRAWS, Correction, draw_positions, estimate_correction
from trainer.scoring.multiplier import Ladder
from trainer.scoring.multiplier.futility import LOOKS

RECORDED = Path(__file__).parents[1] / "results" / "early-stops.json"
PRECISION = {"ci-16gb": 3.2, "playground-h100": 6.0}
"""How much smaller a track's noise is than the recorded ladder's, of which a seed is worth 9 % of compute. That of two
hours is 1.5 %; the smaller track lies between, by the logarithm of the budgets. Assumed, not measured."""
BITS_PER_NAT = SCORE["tokens"] / math.log(2) / SCORE["bytes"]
POSITIONS, REPEATS, MEAN_LOSS, TOKEN_SPREAD, ROUNDING, PEEKED = 100_000, 256, 3.0, 0.3, 2e-6, 0.2
"""Of a simulated score: positions, those scored again, nats of a token, how far two models differ there, rounding, and
the share of positions at which a cheat looks ahead."""


@cache
def load_ladder() -> tuple[Ladder, dict[tuple[str, int], Any]]:
    """Return the ladder and the runs with the whole budget, by name and seed."""
    content = json.loads(RECORDED.read_text())
    ends = np.array([run["dev"][-1] for run in content["runs"] if run["name"] == "gpt"])
    whole = {(run["name"], run["seed"]): run for run in content["runs"] if run["part"] == 1}
    return Ladder.fit(ends[:, 0], ends[:, 1], content["full"]), whole


@cache
def list_changes(late: bool) -> Any:
    """Return how far recorded runs moved from each look to the end, in ln of compute; of late ones that came back."""
    ladder, whole = load_ladder()
    rows = []
    for (name, seed), run in whole.items():
        if name != "gpt" and run["same_recipe"] != late:
            pairs = [(at, *(each["dev"][int(8 * at) - 1] for each in (run, whole["gpt", seed]))) for at in (*LOOKS, 1)]
            behind = np.array(
                [(twin[1] - own[1]) / ladder.slope_at(np.log(at)) + np.log(own[0] / twin[0]) for at, own, twin in pairs]
            )
            rows.append(behind[:-1] - behind[-1])
    changes = np.array(rows)
    return changes[changes[:, -1] > 0] if late else changes


class TrackCurves:
    def __init__(self, slug: str, seed: int) -> None:
        self.rng = np.random.default_rng([seed, len(slug)])
        self.sigma = float(load_ladder()[0].sigma) / PRECISION[slug]

    def draw_end(self, compute: float) -> float:
        """Return the bits per byte of a run with this share of the budget, times its multiplier."""
        return float(load_ladder()[0].loss_at(np.log(compute))) + self.sigma * float(self.rng.normal())

    def get_twin_loss(self, look: float, seed: int) -> float:
        return float(load_ladder()[1]["gpt", 1 + (seed - 1) % 3]["dev"][int(8 * look) - 1][1])

    def draw_looks(self, multiplier: float, seed: int, *, late: bool) -> dict[float, float]:
        """Return the dev losses at the looks of a run that shares a seed with the ladder's."""
        ladder, changes = load_ladder()[0], list_changes(late)
        change = changes[self.rng.integers(len(changes))] * self.rng.uniform(0.5, 1.25)
        change = change if late else change * self.rng.choice([-1, 1])
        noise = math.sqrt(2) * self.sigma / abs(float(ladder.slope_at(np.zeros(()))))
        change = change + noise * (self.rng.normal() + self.rng.normal(size=len(LOOKS))) / 2
        slopes = (float(ladder.slope_at(np.log(look))) for look in LOOKS)
        return {
            look: self.get_twin_loss(look, seed) - slope * (moved - math.log(multiplier))
            for look, slope, moved in zip(LOOKS, slopes, change.tolist(), strict=True)
        }

    def draw_correction(self, ahead: float) -> tuple[float, Correction]:
        """Return the nats per token that a score gains by later tokens, and what the scorer's sample finds of them."""
        losses = self.rng.exponential(MEAN_LOSS, POSITIONS)
        reference = losses + TOKEN_SPREAD * self.rng.normal(size=POSITIONS)
        peeks = np.minimum(losses, ahead / PEEKED) * (self.rng.random(POSITIONS) < PEEKED)
        sample = draw_positions(losses - peeks, reference, DRAWS, self.rng)
        rounding = ROUNDING * self.rng.normal(size=DRAWS)
        repeats = ROUNDING * self.rng.normal(size=REPEATS)
        return float(peeks.mean()), estimate_correction(sample, peeks[sample.positions] + rounding, repeats)
