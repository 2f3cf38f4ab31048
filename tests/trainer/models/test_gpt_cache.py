"""`advance` with a KV cache, piece by piece, equals one pass over the whole row."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
import torch

from tests.support.gpt_models import OPTIONS, SIZE, T, V, build_random_model, sample_tokens
from trainer.models import ARCHITECTURES, gpt, load_architecture

CUTS = {"one by one": [1] * T, "in pieces": [5, 1, 9, 2, 7], "at once": [T]}


def advance_in_pieces(model: Any, tokens: torch.Tensor, cuts: list[int]) -> torch.Tensor:
    parts, state = [], None
    for piece in tokens.split(cuts, dim=1):
        features, state = model.advance(piece, state)
        parts.append(features)
    return torch.cat(parts, dim=1)


@torch.no_grad()
@pytest.mark.parametrize("cuts", CUTS)
@pytest.mark.parametrize("options", OPTIONS)
def test_advance_in_pieces_equals_whole_row(options: str, cuts: str) -> None:
    model, tokens = build_random_model(**OPTIONS[options]), sample_tokens()
    torch.testing.assert_close(
        advance_in_pieces(model, tokens, CUTS[cuts]), model.features(tokens), rtol=1e-4, atol=1e-5
    )


@torch.no_grad()
@pytest.mark.parametrize("name", ["smear", "nanogpt"])
@pytest.mark.parametrize("cuts", CUTS)
def test_advance_of_related_models_in_pieces_equals_whole_row(name: str, cuts: str) -> None:
    assert name in ARCHITECTURES
    module: Any = load_architecture(name)
    fields = {key: value for key, value in SIZE.items() if key in ("depth", "width", "heads")}
    torch.manual_seed(0)
    model = module.Model(dataclasses.replace(module.Config.sized(2, V, T), **fields))
    for parameter in model.parameters():
        parameter.add_(0.1 * torch.randn_like(parameter))
    tokens = sample_tokens()
    torch.testing.assert_close(
        advance_in_pieces(model, tokens, CUTS[cuts]), model.features(tokens), rtol=1e-4, atol=1e-5
    )


@torch.no_grad()
def test_cache_with_window_keeps_only_visible_tokens() -> None:
    model = build_random_model(windows="SL", short_window=5)
    _, state = model.advance(sample_tokens())
    kept = [cache.key.size(2) for cache in state.caches if cache.key is not None]
    assert kept == [4, T, 4, T]


def test_features_in_training_create_no_cache() -> None:
    model = build_random_model()
    assert isinstance(model, gpt.Model)
    features = model.features(sample_tokens())
    assert features.requires_grad
    assert not any(isinstance(value, gpt.KVCache) for block in model.blocks for value in vars(block).values())
