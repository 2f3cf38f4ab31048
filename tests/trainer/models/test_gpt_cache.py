"""Reading piece by piece with a cache is reading the whole row."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
import torch

from tests.trainer.models.test_gpt_options import OPTIONS, SIZE, T, V, built, row
from trainer.models import ARCHITECTURES, architecture, gpt

CUTS = {"one by one": [1] * T, "in pieces": [5, 1, 9, 2, 7], "at once": [T]}


def in_pieces(model: Any, tokens: torch.Tensor, cuts: list[int]) -> torch.Tensor:
    parts, state = [], None
    for piece in tokens.split(cuts, dim=1):
        features, state = model.advance(piece, state)
        parts.append(features)
    return torch.cat(parts, dim=1)


@torch.no_grad()
@pytest.mark.parametrize("cuts", CUTS)
@pytest.mark.parametrize("options", OPTIONS)
def test_pieces_are_the_whole(options: str, cuts: str) -> None:
    model, tokens = built(**OPTIONS[options]), row()
    torch.testing.assert_close(in_pieces(model, tokens, CUTS[cuts]), model.features(tokens), rtol=1e-4, atol=1e-5)


@torch.no_grad()
@pytest.mark.parametrize("name", ["smear", "nanogpt"])
@pytest.mark.parametrize("cuts", CUTS)
def test_pieces_are_the_whole_for_its_relatives(name: str, cuts: str) -> None:
    assert name in ARCHITECTURES
    module: Any = architecture(name)
    fields = {key: value for key, value in SIZE.items() if key in ("depth", "width", "heads")}
    torch.manual_seed(0)
    model = module.Model(dataclasses.replace(module.Config.sized(2, V, T), **fields))
    for parameter in model.parameters():
        parameter.add_(0.1 * torch.randn_like(parameter))
    tokens = row()
    torch.testing.assert_close(in_pieces(model, tokens, CUTS[cuts]), model.features(tokens), rtol=1e-4, atol=1e-5)


@torch.no_grad()
def test_a_block_with_a_window_keeps_no_more_than_it_will_look_at() -> None:
    model = built(windows="SL", short_window=5)
    _, state = model.advance(row())
    kept = [memory.key.size(2) for memory in state.blocks if memory.key is not None]
    assert kept == [4, T, 4, T]


def test_training_keeps_no_cache() -> None:
    model = built()
    assert isinstance(model, gpt.Model)
    features = model.features(row())
    assert features.requires_grad
    assert not any(isinstance(value, gpt.Memory) for block in model.blocks for value in vars(block).values())
