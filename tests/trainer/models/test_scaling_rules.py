"""The rules that carry a recipe to other sizes pass through their anchors with their powers."""

from __future__ import annotations

import pytest

from trainer.models.base import batch_tokens, weight_decay


def test_batch_tokens_grow_with_training_tokens() -> None:
    assert batch_tokens(1e10) == 2**19
    assert batch_tokens(1e12) / batch_tokens(1e10) == pytest.approx(100**0.383)


def test_weight_decay_falls_with_square_of_width() -> None:
    assert weight_decay(768, 0.2) == 0.2
    assert weight_decay(1536, 0.2) == pytest.approx(0.05)
