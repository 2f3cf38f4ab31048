from __future__ import annotations

import hashlib
import random

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from trainer.data.corpora import Document
from trainer.data.splits import DEV, LONG_FRACTION, TEST, TRAIN, assign_splits, cut_document

LENGTHS = st.lists(st.integers(1, 100_000), min_size=1, max_size=300)


def draw_keys(count: int) -> np.ndarray:
    digests = (hashlib.sha256(str(number).encode()).digest() for number in range(count))
    return np.array([int.from_bytes(digest[:8], "big") for digest in digests], dtype=np.uint64)


@settings(deadline=None)
@given(lengths=LENGTHS, seed=st.integers(0, 1000))
def test_document_order_does_not_change_splits(lengths: list[int], seed: int) -> None:
    keys, sizes = draw_keys(len(lengths)), np.array(lengths, dtype=np.uint64)
    order = np.array(random.Random(seed).sample(range(len(lengths)), len(lengths)))
    straight, shuffled = assign_splits(keys, sizes), assign_splits(keys[order], sizes[order])
    assert (straight is None) == (shuffled is None)
    if straight is not None and shuffled is not None:
        assert (straight[order] == shuffled).all()


@settings(deadline=None)
@given(lengths=LENGTHS)
def test_split_has_enough_text_and_train_most(lengths: list[int]) -> None:
    sizes = np.array(lengths, dtype=np.uint64)
    splits = assign_splits(draw_keys(len(lengths)), sizes)
    if splits is None:
        return
    total = int(sizes.sum())
    for split in (DEV, TEST):
        held = int(sizes[splits == split].sum())
        assert held >= min(256 << 10, total // 50)
        assert held <= total * (0.125 + 1 / LONG_FRACTION) + 1
    assert (splits[sizes * LONG_FRACTION > total] == TRAIN).all()


def test_many_documents_are_split_by_hash_alone() -> None:
    keys = draw_keys(30_000)
    few, many = (assign_splits(keys[:count], np.full(count, 5000, dtype=np.uint64)) for count in (20_000, 30_000))
    assert few is not None
    assert many is not None
    assert (few == many[:20_000]).all()
    for split in (DEV, TEST):
        assert 0.008 < (many == split).mean() < 0.012


@settings(deadline=None)
@given(text=st.text(st.sampled_from("ab \n.é😀"), max_size=400), size=st.integers(1, 50))
def test_pieces_cover_document_and_are_bounded(text: str, size: int) -> None:
    pieces = list(cut_document(Document("a", text), size))
    assert "".join(piece.text for piece in pieces) == text
    assert len({piece.id for piece in pieces}) == len(pieces)
    step = max(1, size * len(text) // max(1, len(text.encode())))
    assert all(len(piece.text) <= max(1, 3 * step // 2) for piece in pieces)


def test_piece_ends_at_paragraph_if_possible() -> None:
    document = Document("a", "one two\nthree\n\nfour five six seven")
    assert [piece.text for piece in cut_document(document, 11)] == ["one two\nthree\n\n", "four five six ", "seven"]
