"""Windows of a text, bits per byte and its standard error."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainer.scoring.bits_per_byte import BitsPerByte, estimate_block_stderr, estimate_ratio_stderr
from trainer.scoring.windows import cut_windows

END = 0


def test_bits_per_byte_is_nats_over_bytes_and_ln_2():
    nats = [np.full(10, math.log(2)), np.full(30, 2 * math.log(2))]
    bits = BitsPerByte.from_documents(nats, [20, 50], [np.full(10, 2), np.full(30, 1)])
    assert bits.bits_per_byte == pytest.approx(1.0)
    assert bits.nats_per_token == pytest.approx(70 / 40 * math.log(2))
    assert (bits.tokens, bits.bytes, bits.documents) == (40, 70, 2)


def test_stderr_equals_spread_over_repeated_draws_of_documents():
    rng = np.random.default_rng(3)
    sizes = rng.integers(100, 3000, (2000, 80)).astype(float)
    bits = sizes * (1.2 + 0.2 * rng.normal(size=sizes.shape)) + 50
    spread = (bits.sum(1) / sizes.sum(1)).std()
    estimate = np.mean([estimate_ratio_stderr(b, s) for b, s in zip(bits[:300], sizes[:300], strict=True)])
    assert estimate == pytest.approx(spread, rel=0.05)


def test_stderr_of_one_document_comes_from_its_blocks():
    rng = np.random.default_rng(4)
    drawn = rng.exponential(2, (300, 6400))
    lengths = np.full(6400, 4)
    spread = (drawn.sum(1) / math.log(2) / (4 * 6400)).std()
    estimate = np.mean([estimate_block_stderr(row, lengths) for row in drawn])
    assert estimate == pytest.approx(spread, rel=0.1)


def test_stderr_of_one_token_is_none():
    assert BitsPerByte.from_documents([np.ones(1)], [3], [np.array([3])]).stderr is None


@given(count=st.integers(1, 100), row=st.integers(1, 20))
def test_windows_predict_every_token_once(count, row):
    tokens = np.arange(1, count + 1)
    windows = cut_windows(0, tokens, END, row)
    assert np.concatenate([window.targets for window in windows]).tolist() == tokens.tolist()
    for window in windows:
        assert len(window.inputs) == len(window.targets) <= row
        assert (window.targets - window.inputs).tolist() == [1] * len(window)
    assert windows[0].inputs[0] == END
