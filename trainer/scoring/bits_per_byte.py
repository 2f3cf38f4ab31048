"""Bits per byte and its standard error. Pure numpy."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Self

import numpy as np
from numpy.typing import NDArray

MAX_BLOCKS = 100  # maximum number of blocks of a single document for its standard error
MIN_BLOCK_TOKENS = 64  # minimum tokens in such a block, if the text is long enough for two


@dataclass(frozen=True)
class BitsPerByte:
    """Bits that the model needs per byte of text."""

    bits_per_byte: float
    stderr: float | None
    """Standard error over documents, or over the blocks of a single one. None for a single token."""
    nats_per_token: float
    tokens: int
    bytes: int
    documents: int

    @classmethod
    def from_documents(
        cls, nats: list[NDArray[np.float64]], sizes: list[int], lengths: list[NDArray[np.int64]]
    ) -> Self:
        """`nats`: of each token, by document. `sizes`: bytes of each document. `lengths`: bytes of each token."""
        tokens, size = sum(map(len, nats)), sum(sizes)
        total = math.fsum(float(part.sum()) for part in nats)
        bits = np.array([part.sum() for part in nats]) / math.log(2)
        error = (
            estimate_ratio_stderr(bits, np.array(sizes, float))
            if len(nats) > 1
            else estimate_block_stderr(nats[0], lengths[0])
        )
        return cls(total / math.log(2) / size, error, total / tokens, tokens, size, len(nats))


def estimate_ratio_stderr(bits: NDArray[np.float64], sizes: NDArray[np.float64]) -> float:
    """Return the standard error of sum(bits) / sum(sizes) for independent units (documents).

    The linearized ratio estimator (Cochran, Sampling Techniques, 3rd ed., section 2.11), with n - 1.
    """
    count = len(bits)
    residuals = bits - bits.sum() / sizes.sum() * sizes
    return math.sqrt(count / (count - 1) * float(residuals @ residuals)) / float(sizes.sum())


def estimate_block_stderr(nats: NDArray[np.float64], lengths: NDArray[np.int64]) -> float | None:
    """Return the same over blocks of one document. It is slightly too small: neighboring blocks are correlated."""
    count = min(MAX_BLOCKS, max(2, len(nats) // MIN_BLOCK_TOKENS), len(nats))
    edges = [len(nats) * i // count for i in range(count)]
    sizes = np.add.reduceat(lengths.astype(float), edges)
    if count < 2 or not sizes.sum():
        return None
    return estimate_ratio_stderr(np.add.reduceat(nats, edges) / math.log(2), sizes)
