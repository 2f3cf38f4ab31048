"""Documents cut into windows, and windows padded to rows.

The policy: a document of tokens d1..dn is read as end-of-text, d1, ..., dn, and every d is predicted exactly once. The
windows are as long as the model's training rows, T, and do not overlap: the first sees end-of-text, d1..d(T-1), each
later one begins with the last token of the one before. So a token is predicted from at most T tokens, and from few at
the start of a window, as for every entry. This is lm-eval's rolling window with `context_len=1`. Overlapping windows
would improve every score a little and cost more. The closing end-of-text is not predicted: it has no bytes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True)
class TextWindow:
    """A stretch of one document."""

    document: int  # index of the document
    inputs: NDArray[np.int64]
    targets: NDArray[np.int64]  # the token after each input

    def __len__(self) -> int:
        return len(self.inputs)


def cut_windows(document: int, tokens: NDArray[np.int64], end_of_text: int, length: int) -> list[TextWindow]:
    """Return a document's windows of at most `length` tokens."""
    row = np.concatenate([[end_of_text], tokens]).astype(np.int64)
    starts = range(0, len(tokens), length)
    return [TextWindow(document, row[i : i + length][: len(tokens) - i], row[i + 1 : i + 1 + length]) for i in starts]


def pad_rows(rows: Sequence[NDArray[np.int64]], length: int, padding: int) -> NDArray[np.int64]:
    """Return int64 [rows, length], padded on the right, where it cannot affect a causal model."""
    padded = np.full((len(rows), length), padding, np.int64)
    for i, row in enumerate(rows):
        padded[i, : len(row)] = row
    return padded
