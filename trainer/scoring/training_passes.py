"""Compare the trained weights by both graphs: that of training, and that of evaluation, which is scored.

A graph of evaluation alone could hold knowledge that no training paid for. Without random numbers both graphs of an
honest model predict the same. Dropout costs a model some loss in training, about half the variance of its logits; in
the mean logits of n passes, one n-th of that. The mean of n passes and those of n / 2 show what infinitely many would
cost. What is left of honest dropout is the difference that layers after it make (`MAX_SHARE`).
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from trainer.scoring.model_scorer import Losses, ModelScorer, Tokens
from trainer.scoring.passes import TRAINING_DRAWS as DRAWS

VARIANCES = 2.0  # of a token's loss by the mean logits, by which the mean losses of both graphs may differ
STDERRS = 4.0  # of the difference
MAX_SHARE = 0.01
"""Of the mean loss, by which they may differ. Measured on a transformer of 3 layers after 500 steps: 0.24 % with
dropout of 0.1 at every place, 0.05 % with 0.5, -0.12 % with 0.3 after each branch, 0.19 % with 0.3 of branches dropped.
"""
ROUNDING = 2.0**-13
"""Difference of both graphs by rounding, as a share of the mean loss: the order of sums may differ."""


@dataclass(frozen=True)
class PassDifference:
    """The difference of both graphs, in nats a token."""

    nats: float  # mean loss by the mean logits of endless passes of training, minus that by the graph of evaluation
    noise: float  # standard deviation of a token's loss between two passes of training
    allowed: float  # largest difference that random numbers and rounding explain

    @property
    def is_beyond_noise(self) -> bool:
        return not abs(self.nats) <= self.allowed


def compare_passes(
    scorer: ModelScorer, inputs: Tokens, targets: Tokens, mask: np.ndarray, evaluated: Losses
) -> PassDifference:
    """Score rows `[n, T]` with the graph of training. `evaluated`: their losses by that of evaluation."""
    found, row_variances = [], []
    scorer.model.train()
    try:
        for row, target, scored, expected in zip(inputs, targets, mask, evaluated, strict=True):
            sums, single = [0, 0], []
            for draw in range(DRAWS):
                logits = scorer.compute_logits(row).float()
                single.append(scorer.score_targets(logits, target).nats)
                sums[draw % 2] = sums[draw % 2] + logits
            halves = [scorer.score_targets(half / (DRAWS // 2), target).nats for half in sums]
            whole = scorer.score_targets((sums[0] + sums[1]) / DRAWS, target).nats
            nats = 2 * whole - (halves[0] + halves[1]) / 2 - expected
            row_variances.append(np.var(np.sum(np.stack(single)[:, scored], axis=1), ddof=1))
            found.append(np.stack([nats, np.var(single, axis=0, ddof=1), expected])[:, scored])
    finally:
        scorer.model.eval()
    nats, variance, loss = (float(values.mean()) for values in np.concatenate(found, axis=1))
    # The tokens of a row may share random numbers, as with a random depth: its sums are independent, not its tokens.
    stderr = math.sqrt(float(np.sum(row_variances)) / DRAWS) / int(mask.sum())
    allowed = min(VARIANCES * variance / DRAWS + STDERRS * stderr, MAX_SHARE * loss) + ROUNDING * loss
    return PassDifference(nats=nats, noise=math.sqrt(variance), allowed=allowed)
