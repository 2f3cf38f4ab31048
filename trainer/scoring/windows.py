"""Documents cut into windows, windows put together into questions.

The policy: a document of tokens d1..dn is read as end-of-text, d1, ..., dn, and every d is predicted exactly once. The
windows are as long as the model's training rows, T, and do not overlap: the first sees end-of-text, d1..d(T-1), each
later one begins with the last token of the one before. So a token is predicted from at most T tokens, and from few at
the start of a window, for every entry alike. This is lm-eval's rolling window with `context_len=1`. Overlapping windows
would flatter every model a little, cost more, and show a later window's text in an earlier one, which the prefix check
must not do. The closing end-of-text is not predicted: it has no bytes.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True)
class TextWindow:
    """A stretch of one document."""

    document: int
    """Index of the document."""
    inputs: NDArray[np.int64]
    """What the model sees."""
    targets: NDArray[np.int64]
    """What follows each: the document's own tokens."""

    def __len__(self) -> int:
        return len(self.inputs)


def cut_windows(document: int, tokens: NDArray[np.int64], end_of_text: int, length: int) -> list[TextWindow]:
    """A document's windows of at most `length` tokens."""
    line = np.concatenate([[end_of_text], tokens]).astype(np.int64)
    starts = range(0, len(tokens), length)
    return [TextWindow(document, line[i : i + length][: len(tokens) - i], line[i + 1 : i + 1 + length]) for i in starts]


def round_row_length(count: int, length: int) -> int:
    """Tokens to which a row of `count` is filled up, where rows have at most `length`: one of eight sizes.

    A row has the same size in whatever company it is asked, so what a model makes of the filling is one thing, and what
    it makes of the company another. And there are few shapes, which compilers like.
    """
    step = -(-length // 8)
    return min(length, -(-count // step) * step)


def batch_rows(sizes: Sequence[int], positions: int, dice: random.Random) -> Iterator[list[int]]:
    """Indices of rows of one size, in groups of at most `positions` tokens, in an order that nobody can foresee."""
    order = sorted(range(len(sizes)), key=lambda i: (sizes[i], dice.random()))
    groups: list[list[int]] = []
    for i in order:
        if groups and sizes[groups[-1][0]] == sizes[i] and (len(groups[-1]) + 1) * sizes[i] <= positions:
            groups[-1].append(i)
        else:
            groups.append([i])
    dice.shuffle(groups)
    yield from groups


def pad_rows(rows: Sequence[NDArray[np.int64]], size: int, filler: int) -> NDArray[np.int64]:
    """int64[rows, size], each filled up on the right: what comes after a token must not matter to it."""
    block = np.full((len(rows), size), filler, np.int64)
    for i, row in enumerate(rows):
        block[i, : len(row)] = row
    return block
