"""Correct a score for later tokens that a model may have used. Pure numpy.

Let f_i be the loss at position i in a pass over a whole row, and p_i the loss there when every later token is replaced
by other text. The corrected mean loss is

    mean_i f_i + mean_{i in S} (p_i - f_i) / (N q_i),

for a sample S that is drawn with replacement with probabilities q_i (Hansen and Hurwitz 1943). Its expectation is the
mean of the p_i, whatever the model does with later tokens. For a causal model p_i - f_i is rounding.

The sample of a model that uses later tokens at few positions can lack all of them, and is then that of a causal model.
So the standard error allows for what such positions could hide, also if none is found.

Positions are drawn half uniformly and half in proportion to how far f_i is below a reference, the loss of another model
there: where looking ahead pays, it is found.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

DRAWS = 4096  # of a long text
TOKENS_PER_DRAW = 4  # of a short one, whose own sampling error is larger
UNIFORM_SHARE = 0.5  # of the draws
UNSEEN_DRAWS = 2.6
"""Draws of a costly position that may have been missed, added to the variance: with 3 expected, none is drawn in 5 % of
samples, and 3 are 1.96 standard errors only if the variance is at least 3^2 / 1.96^2 = 2.3 of theirs."""

Losses = NDArray[np.float64]


@dataclass(frozen=True)
class PositionSample:
    """Positions drawn with replacement."""

    positions: NDArray[np.int64]  # [n], indices into the losses
    weights: Losses  # [n], 1 / (N q) of each
    unseen: float  # weight times gain of a position that was not drawn


@dataclass(frozen=True)
class Correction:
    """What has to be added to a mean loss, in nats."""

    nats: float
    stderr: float  # with `unseen`
    rounding: float  # standard error that differences of rounding alone would have
    unseen: float  # the part of `stderr` for later tokens that are used only at positions that were not drawn

    @property
    def is_beyond_rounding(self) -> bool:
        """Whether the model uses later tokens: the correction is larger than four standard errors of rounding."""
        return bool(self.nats > 4 * max(self.rounding, 1e-7))


def choose_draws(positions: int) -> int:
    """Return how many of a text's positions are drawn."""
    return max(2, min(DRAWS, positions // TOKENS_PER_DRAW))


def draw_positions(losses: Losses, reference: Losses, draws: int, rng: np.random.Generator) -> PositionSample:
    """Draw positions from `losses [N]`, more often where they are below `reference [N]`."""
    count = len(losses)
    gains = np.clip(reference - losses, 0.0, None)
    total = float(gains.sum())
    share = UNIFORM_SHARE if total > 0 else 1.0
    chances = np.full(count, share / count)
    if total > 0:
        chances += (1 - share) * gains / total
    chances /= chances.sum()
    positions = rng.choice(count, size=draws, p=chances)
    return PositionSample(
        positions, 1 / (count * chances[positions]), total / count / (1 - share) if total > 0 else 0.0
    )


def estimate_correction(sample: PositionSample, differences: Losses, repeats: Losses) -> Correction:
    """Return the correction of a mean loss.

    `differences [n]`: p - f of the drawn positions. `repeats [m]`: differences of p between two replacements of the
    same later tokens, which only rounding explains.
    """
    draws = len(differences)
    values = sample.weights * differences
    unseen = math.sqrt(UNSEEN_DRAWS) * sample.unseen / draws
    spread = float(np.sqrt(np.mean(np.square(repeats)) / 2)) if len(repeats) else 0.0
    rounding = spread * math.sqrt(float(np.mean(np.square(sample.weights))) / draws)
    stderr = math.hypot(float(values.std(ddof=1)) / math.sqrt(draws), unseen)
    return Correction(float(values.mean()), stderr, rounding, unseen)


def estimate_reference(tokens: NDArray[np.int64], vocabulary_size: int) -> Losses:
    """Return the loss of a unigram model of the text itself, for a text that no other model has scored."""
    counts = np.bincount(tokens, minlength=vocabulary_size) + 1.0
    nats: Losses = -np.log(counts / counts.sum())[tokens]
    return nats
