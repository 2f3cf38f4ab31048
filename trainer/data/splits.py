"""Assign documents to train, dev or test by the hash of their text.

The lowest 1 % of all hash values are test, the next 1 % dev, the rest train. In a corpus of few documents, dev and test
take more of the lowest hashes until they have enough text. A document longer than a twentieth of the corpus is always
train. The order of documents has no effect. In a corpus of thousands the other documents have none either, so a text
stays in its split when the corpus grows.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

import numpy as np

from trainer.data.corpora import Document

TRAIN, DEV, TEST = 0, 1, 2
SHARE = 0.01  # of all hash values, for each of dev and test
LONG_FRACTION = 20  # a document longer than a twentieth of the corpus is train
ENOUGH_BYTES = 256 << 10  # bytes for each of dev and test, if the corpus is large enough
SMALLEST_CORPUS = 8 << 10  # bytes
SMALLEST_PIECE = 256  # bytes
PIECES = 100  # a corpus of a few long documents is cut into about this many


def assign_splits(keys: np.ndarray, lengths: np.ndarray) -> np.ndarray | None:
    """Return TRAIN, DEV or TEST, [N] int8, for documents with these hashes (uint64) and lengths in bytes.

    Return None if dev and test would get too little text because the documents are too few or too long.
    """
    total = int(lengths.sum())
    required = min(ENOUGH_BYTES, max(total // 50, min(2 << 10, total // 8)))
    order = np.argsort(keys, kind="stable")
    order = order[lengths[order] * LONG_FRACTION <= total]
    splits = np.zeros(len(keys), dtype=np.int8)
    start = 0
    for split, share in ((TEST, SHARE), (DEV, 2 * SHARE)):
        size = 0
        while start < len(order) and (size < required or keys[order[start]] < share * 2.0**64):
            splits[order[start]] = split
            size += int(lengths[order[start]])
            start += 1
        if size < required:
            return None
    return splits


def cut_document(document: Document, size: int) -> Iterator[Document]:
    """Cut a document into pieces of about `size` bytes at the end of a paragraph, a line or at least a word."""
    text, start, number = document.text, 0, 1
    step = max(1, size * len(text) // (len(text.encode()) or 1))  # characters
    while len(text) - start > 3 * step // 2:
        end = _find_boundary(text, start + step, start + 3 * step // 2)
        yield Document(
            f"{document.id}/{number}", text[start:end], min(max(document.prompt_length - start, 0), end - start)
        )
        start, number = end, number + 1
    name = f"{document.id}/{number}" if number > 1 else document.id
    yield Document(name, text[start:], max(document.prompt_length - start, 0))


def _find_boundary(text: str, start: int, stop: int) -> int:
    for pattern in _BOUNDARIES:
        if match := pattern.search(text, start, stop):
            return match.end()
    return start


_BOUNDARIES = [re.compile(pattern) for pattern in (r"\n\s*\n", r"\n", r"\s")]
