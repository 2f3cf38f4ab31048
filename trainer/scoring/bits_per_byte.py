"""Bits per byte, with its standard error. Pure numpy."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Self

import numpy as np
from numpy.typing import NDArray

MAX_BLOCKS = 100
"""A single document's standard error comes from at most this many blocks of it,"""

MIN_BLOCK_TOKENS = 64
"""of at least this many tokens where the text is long enough for two."""


@dataclass(frozen=True)
class BitsPerByte:
    """How many bits the model needs for a byte of text."""

    bits_per_byte: float
    stderr: float | None
    """Of `bits_per_byte`, over documents; over blocks where there is one document; None where there is one token."""
    nats_per_token: float
    tokens: int
    bytes: int
    documents: int

    @classmethod
    def of(cls, nats: list[NDArray[np.float64]], sizes: list[int], lengths: list[NDArray[np.int64]]) -> Self:
        """From each document's nats per token, its size in bytes, and its tokens' lengths in bytes."""
        tokens, size = sum(map(len, nats)), sum(sizes)
        total = math.fsum(float(part.sum()) for part in nats)
        bits = np.array([part.sum() for part in nats]) / math.log(2)
        error = ratio_stderr(bits, np.array(sizes, float)) if len(nats) > 1 else block_stderr(nats[0], lengths[0])
        return cls(total / math.log(2) / size, error, total / tokens, tokens, size, len(nats))


def ratio_stderr(bits: NDArray[np.float64], sizes: NDArray[np.float64]) -> float:
    """Standard error of sum(bits) / sum(sizes) when the units (documents) are drawn independently.

    The linearised ratio estimator (Cochran, Sampling Techniques, 3rd ed., section 2.11), with n - 1.
    """
    count = len(bits)
    residuals = bits - bits.sum() / sizes.sum() * sizes
    return math.sqrt(count / (count - 1) * float(residuals @ residuals)) / float(sizes.sum())


def block_stderr(nats: NDArray[np.float64], lengths: NDArray[np.int64]) -> float | None:
    """The same over blocks of one document. Neighbouring blocks are alike, so it is somewhat too small."""
    count = min(MAX_BLOCKS, max(2, len(nats) // MIN_BLOCK_TOKENS), len(nats))
    edges = [len(nats) * i // count for i in range(count)]
    sizes = np.add.reduceat(lengths.astype(float), edges)
    if count < 2 or not sizes.sum():
        return None
    return ratio_stderr(np.add.reduceat(nats, edges) / math.log(2), sizes)
