"""Which document belongs to train, dev or test: by the hash of its text, never by its place in the corpus.

Ordered by hash, the documents in the lowest 1 % of all hashes are test, those in the next 1 % dev, the rest train; in
a corpus of few documents more of the lowest are taken until dev and test hold enough text to be measured on. A document
longer than a twentieth of the corpus is always train. The order of the documents does not matter; in a corpus of
thousands neither do the other documents, so a text stays on its side when the corpus grows.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

import numpy as np

from trainer.data.corpora.document import Document

TRAIN, DEV, TEST = 0, 1, 2
SHARE = 0.01  # of all hashes, for each of dev and test
LONG = 20  # a document longer than a twentieth of the corpus is train
ENOUGH = 256 << 10  # bytes: what dev and test want where there is that much
SMALLEST_CORPUS = 8 << 10  # bytes
SMALLEST_PIECE = 256  # bytes
PIECES = 100  # a corpus of a few long documents is cut into about so many


def assign(keys: np.ndarray, lengths: np.ndarray) -> np.ndarray | None:
    """[N] int8 of TRAIN, DEV, TEST for documents with these hashes (uint64) and lengths in bytes.

    None where the documents are too few or too long for dev and test to have enough: they must be cut first.
    """
    total = int(lengths.sum())
    wanted = min(ENOUGH, max(total // 50, min(2 << 10, total // 8)))
    order = np.argsort(keys, kind="stable")
    order = order[lengths[order] * LONG <= total]
    splits = np.zeros(len(keys), dtype=np.int8)
    start = 0
    for split, share in ((TEST, SHARE), (DEV, 2 * SHARE)):
        taken = 0
        while start < len(order) and (taken < wanted or keys[order[start]] < share * 2.0**64):
            splits[order[start]] = split
            taken += int(lengths[order[start]])
            start += 1
        if taken < wanted:
            return None
    return splits


def cut(document: Document, size: int) -> Iterator[Document]:
    """The document in pieces of about `size` bytes, cut where a paragraph, a line or at least a word ends."""
    text, start, number = document.text, 0, 1
    step = max(1, size * len(text) // (len(text.encode()) or 1))  # characters
    while len(text) - start > 3 * step // 2:
        end = _end_near(text, start + step, start + 3 * step // 2)
        yield Document(f"{document.id}/{number}", text[start:end], min(max(document.given - start, 0), end - start))
        start, number = end, number + 1
    name = f"{document.id}/{number}" if number > 1 else document.id
    yield Document(name, text[start:], max(document.given - start, 0))


def _end_near(text: str, start: int, stop: int) -> int:
    for pattern in _ENDS:
        if match := pattern.search(text, start, stop):
            return match.end()
    return start


_ENDS = [re.compile(pattern) for pattern in (r"\n\s*\n", r"\n", r"\s")]
