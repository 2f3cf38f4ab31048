"""The rules that carry a recipe to other sizes pass through their anchors with their powers."""

from __future__ import annotations

import pytest

from trainer.models.scaling import batch_tokens, weight_decay


def test_the_batch_grows_with_the_tokens_of_the_run() -> None:
    assert batch_tokens(1e10) == 2**19
    assert batch_tokens(1e12) / batch_tokens(1e10) == pytest.approx(100**0.383)


def test_weight_decay_falls_with_the_square_of_the_width() -> None:
    assert weight_decay(768, 0.2) == 0.2
    assert weight_decay(1536, 0.2) == pytest.approx(0.05)
