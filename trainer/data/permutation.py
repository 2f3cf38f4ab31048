"""A shuffle that needs no memory: the new position of each number is computed, not stored.

A Feistel network permutes the numbers with an even count of bits for any round function. Results outside the range are
permuted again until they are inside (cycle walking), which is still a permutation. The result is a pure function of
(seed, size, number), the same on every machine.
"""

from __future__ import annotations

import numpy as np

ROUNDS = 6
_GOLDEN = np.uint64(0x9E3779B97F4A7C15)


def permute(numbers: np.ndarray, size: int, seed: int) -> np.ndarray:
    """Return the new positions of `numbers` (int64, all in [0, size)) in the shuffle of [0, size) by `seed`."""
    half = max(1, (max(1, size - 1).bit_length() + 1) // 2)
    start = np.array([seed & 0xFFFFFFFFFFFFFFFF], dtype=np.uint64)
    keys = _mix(np.arange(1, ROUNDS + 1, dtype=np.uint64) * _GOLDEN ^ _mix(start))
    values = numbers.astype(np.uint64)
    outside = np.ones(len(values), dtype=bool)
    while outside.any():
        values[outside] = _feistel(values[outside], half, keys)
        outside = values >= size
    return values.astype(np.int64)


def shuffle_positions(positions: np.ndarray, size: int, seed: int) -> np.ndarray:
    """Return the numbers at these positions of a sequence of epochs, each of which is its own shuffle of [0, size)."""
    epochs, places = np.divmod(positions, size)
    numbers = np.empty_like(places)
    for epoch in np.unique(epochs):
        chosen = epochs == epoch
        numbers[chosen] = permute(places[chosen], size, seed=seed * 0x100000001B3 + int(epoch))
    return numbers


def _feistel(values: np.ndarray, half: int, keys: np.ndarray) -> np.ndarray:
    mask, shift = np.uint64((1 << half) - 1), np.uint64(half)
    left, right = values >> shift, values & mask
    for key in keys:
        left, right = right, left ^ (_mix(right ^ key) & mask)
    return left << shift | right


def _mix(values: np.ndarray) -> np.ndarray:
    """splitmix64's finalizer: every bit of the result depends on every bit that went in."""
    values = (values ^ (values >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    values = (values ^ (values >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return values ^ (values >> np.uint64(31))
