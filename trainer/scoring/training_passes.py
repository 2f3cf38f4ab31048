"""Compare the trained weights by both graphs: that of training, and that of evaluation, which is scored.

A graph of evaluation alone could hold knowledge that no training paid for. Without random numbers both graphs of an
honest model predict the same. Dropout costs a model some loss in training: about half the variance of its logits, which
is also about the variance of a token's loss between two passes. A difference beyond twice that variance is not
dropout's, nor one beyond a share of the loss: large noise on few tokens has any variance and costs no training.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from trainer.scoring.model_scorer import Losses, ModelScorer, Tokens

VARIANCES = 2.0  # of a token's loss, by which the mean losses of both graphs may differ
STDERRS = 4.0  # of the difference
MAX_SHARE = 0.08  # of the mean loss; half of all features dropped costs 0.05 of it
ROUNDING = 2.0**-13
"""Difference of both graphs by rounding, as a share of the mean loss: the order of sums may differ."""


@dataclass(frozen=True)
class PassDifference:
    """The difference of both graphs, in nats a token."""

    nats: float  # mean loss by the graph of training, minus that by the graph of evaluation
    noise: float  # standard deviation of a token's loss between two passes of training
    allowed: float  # largest difference that random numbers and rounding explain

    @property
    def is_beyond_noise(self) -> bool:
        return not abs(self.nats) <= self.allowed


def compare_passes(
    scorer: ModelScorer, inputs: Tokens, targets: Tokens, mask: np.ndarray, evaluated: Losses
) -> PassDifference:
    """Score rows `[n, T]` twice with the graph of training. `evaluated`: their losses by that of evaluation."""
    scorer.model.train()
    try:
        first, second = (scorer.score_rows(inputs, targets).nats[mask] for _ in range(2))
    finally:
        scorer.model.eval()
    expected = evaluated[mask]
    variance = float(np.square(first - second).mean()) / 2
    stderr = math.sqrt(variance / 2 / len(expected))  # of the mean of both passes
    loss = float(expected.mean())
    allowed = min(VARIANCES * variance + STDERRS * stderr, MAX_SHARE * loss) + ROUNDING * loss
    nats = float(((first + second) / 2 - expected).mean())
    return PassDifference(nats=nats, noise=math.sqrt(variance), allowed=allowed)
