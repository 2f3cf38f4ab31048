"""Correct a score for later tokens that a model may have used. Pure numpy.

Let f_i be the loss at position i in a pass over a whole row, and p_i the loss there when every later token is replaced
by other text. The corrected mean loss is

    mean_i f_i + mean_{i in S} (p_i - f_i) / (N q_i),

for a sample S that is drawn with replacement with probabilities q_i (Hansen and Hurwitz 1943). Its expectation is the
mean of the p_i, for any use of later tokens. For a causal model p_i - f_i is rounding.

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

ROUNDING_STDERRS = 4.0
LEAST_ROUNDING = 2.0**-23
"""Smallest allowance for rounding, as a share of the mean loss. A loss has 32 bits and so a relative error of at most
2^-24. So f_i and p_i of a causal model differ by up to 2^-23 f_i, even if nothing before them rounds. The correction is
a weighted mean of p_i - f_i, with weights that turn such a mean into that of all positions."""
MOST_ROUNDING = 2.0**-8
"""Largest allowance as a share of the mean loss, for the difference of two losses at one position. Scores are computed
in 32 bits, and bf16, with a relative spacing of 2^-8, is the coarsest type to which a graph can round by itself. The
public architectures of `tests/support` differ by 2e-6 at most, and under bf16 autocast by 2e-4."""
MIN_LOSS = 1.0  # nats. Below, rounding follows the size of logits, not of losses

Losses = NDArray[np.float64]


@dataclass(frozen=True)
class PositionSample:
    """Positions drawn with replacement."""

    positions: NDArray[np.int64]  # [n], indices into the losses
    weights: Losses  # [n], 1 / (N q) of each
    undrawn_gain: float  # weight times gain of a position that was not drawn
    mean_loss: float  # of all positions


@dataclass(frozen=True)
class Correction:
    """The correction of a mean loss for later tokens, in nats."""

    nats: float
    stderr: float  # with `unseen`
    rounding: float  # standard error of the correction of a causal model whose repeated losses differ as much
    unseen: float  # the part of `stderr` for later tokens that are used only at positions that were not drawn
    least_rounding: float  # that losses of this size may have (`LEAST_ROUNDING`)
    most_rounding: float  # `rounding` of a causal model is not larger (`MOST_ROUNDING`)

    @property
    def is_beyond_rounding(self) -> bool:
        """Whether the model uses later tokens: by its correction, or by how much it depends on their replacement.

        The correction is compared with four standard errors of rounding, of which `least_rounding` is always allowed.
        It can be negative: later tokens may also make predictions worse. A model can enlarge the measured `rounding`
        by depending on the replacement, but only up to `most_rounding`.
        """
        is_corrected = abs(self.nats) > ROUNDING_STDERRS * max(self.rounding, self.least_rounding)
        return bool(is_corrected or self.depends_on_replacement)

    @property
    def depends_on_replacement(self) -> bool:
        """Whether losses differ between two replacements of the later tokens by more than rounding."""
        return self.rounding > self.most_rounding


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
    undrawn_gain = total / count / (1 - share) if total > 0 else 0.0
    return PositionSample(positions, 1 / (count * chances[positions]), undrawn_gain, float(losses.mean()))


def estimate_correction(sample: PositionSample, differences: Losses, repeats: Losses) -> Correction:
    """Return the correction of a mean loss.

    `differences [n]`: p - f of the drawn positions. `repeats [m]`: differences of p between two independent
    replacements of the later tokens, at some of them. For a causal model both are rounding alone, of two passes each.
    """
    draws = len(differences)
    values = sample.weights * differences
    unseen = math.sqrt(UNSEEN_DRAWS) * sample.undrawn_gain / draws
    spread = float(np.sqrt(np.mean(np.square(repeats)))) if len(repeats) else 0.0
    to_stderr = math.sqrt(float(np.mean(np.square(sample.weights))) / draws)
    size = max(sample.mean_loss, MIN_LOSS)
    stderr = math.hypot(float(values.std(ddof=1)) / math.sqrt(draws), unseen)
    return Correction(
        nats=float(values.mean()),
        stderr=stderr,
        rounding=spread * to_stderr,
        unseen=unseen,
        least_rounding=LEAST_ROUNDING * size,
        most_rounding=MOST_ROUNDING * size * to_stderr,
    )


def estimate_reference(tokens: NDArray[np.int64], vocabulary_size: int) -> Losses:
    """Return the loss of a unigram model of the text itself, for a text that no other model has scored."""
    counts = np.bincount(tokens, minlength=vocabulary_size) + 1.0
    nats: Losses = -np.log(counts / counts.sum())[tokens]
    return nats
