"""Log-probabilities from logits, in the scorer: at least float32, sums in float64. Pure numpy."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from trainer.scoring.misbehavior import NonFiniteLogitsError

CHUNK_BYTES = 2**20  # logits processed at a time: they fit in the processor's cache


class LogitsSource(Protocol):
    """A model, wherever it runs."""

    @property
    def sequence_length(self) -> int:
        """Tokens of the longest row."""

    @property
    def max_tokens(self) -> int:
        """Tokens of the largest request."""

    def get_logits(self, tokens: NDArray[np.int64]) -> NDArray[np.float32]:
        """Return logits `[rows, length, vocabulary]` for token ids `[rows, length]`."""

    def check_unchanged(self) -> None:
        """Raise if the last logits have changed since they were returned."""


@dataclass(frozen=True)
class TargetScores:
    """How a model predicted the tokens that followed."""

    log_probabilities: NDArray[np.float64]  # of each target, in nats; at most 0
    greedy: NDArray[np.bool_]  # whether the target was the most likely token


def score_targets(logits: NDArray[np.float32], targets: NDArray[np.int64]) -> TargetScores:
    """Return the scores of `targets` [n] under `logits` [n, vocabulary]; raise `NonFiniteLogitsError`."""
    log_probabilities = np.empty(len(targets), np.float64)
    greedy = np.empty(len(targets), np.bool_)
    for chunk, shifted, log_sum in _chunks(logits):
        picked = shifted[np.arange(len(shifted)), targets[chunk]]
        log_probabilities[chunk] = picked - log_sum
        greedy[chunk] = picked == 0  # its logit is the row's largest
    return TargetScores(log_probabilities, greedy)


def log_softmax(logits: NDArray[np.float32]) -> NDArray[np.float64]:
    """Return log-probabilities [n, vocabulary] in nats; raise `NonFiniteLogitsError`. For few rows: memory is O(n)."""
    rows = [shifted - log_sum[:, None] for _, shifted, log_sum in _chunks(logits)]
    return np.concatenate(rows) if rows else np.empty(logits.shape, np.float64)


def _chunks(logits: NDArray[np.float32]) -> Iterator[tuple[slice, NDArray[np.float32], NDArray[np.float64]]]:
    """Yield (rows, their logits minus the row's maximum, log of the sum of the exponentials)."""
    step = max(1, CHUNK_BYTES // (logits.shape[1] * logits.itemsize))
    for start in range(0, len(logits), step):
        chunk = slice(start, start + step)
        largest = logits[chunk].max(axis=1, keepdims=True)
        # max and min propagate NaN, so two cheap passes find everything that is not finite.
        if not np.isfinite(largest).all() or not np.isfinite(logits[chunk].min()):
            raise NonFiniteLogitsError
        shifted = logits[chunk] - largest
        yield chunk, shifted, np.log(np.exp(shifted).sum(axis=1, dtype=np.float64))
