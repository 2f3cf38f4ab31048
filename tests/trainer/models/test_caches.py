"""`advance` with a cache or state, piece by piece, equals one pass over the whole row."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch

from tests.support.gpt_models import OPTIONS, T, V, build_random_model, sample_tokens
from trainer.models import ARCHITECTURES, litgpt, load_architecture

SMALL = {"n_layer": 2, "n_embd": 32, "n_head": 4, "intermediate_size": 64}
FAMILIES: dict[str, tuple[str, dict[str, Any]]] = {
    "litgpt, GPT-NeoX": ("pythia-14m", {}),
    "litgpt, Llama, grouped queries": ("tiny-llama-1.1b", {"n_query_groups": 2, "head_size": 8}),
    "litgpt, one query group": ("pythia-14m", {"n_query_groups": 1, "head_size": 8}),
    "litgpt, windows and soft caps": ("Gemma-2-2b", {"n_query_groups": 2, "head_size": 8, "sliding_window_size": 5}),
}


def build_litgpt(family: str) -> Any:
    name, fields = FAMILIES[family]
    return litgpt.Model(litgpt.Config(V, T, name, {**SMALL, **fields}))


def build_architecture(name: str) -> Any:
    module = load_architecture(name)
    return module.Model(module.Config.sized(2, V, T))


MODELS: dict[str, Callable[[], Any]] = {
    **{name: partial(build_architecture, name) for name in ARCHITECTURES if name != "litgpt"},
    **{f"gpt, {option}": partial(build_random_model, **fields) for option, fields in OPTIONS.items()},
    **{family: partial(build_litgpt, family) for family in FAMILIES},
}


@torch.no_grad()
def build_moved(name: str) -> Any:
    """Return a model whose branches do not end in zeros, which would hide everything."""
    torch.manual_seed(0)
    model = MODELS[name]().eval()
    for parameter in model.parameters():
        parameter.add_(torch.randn_like(parameter), alpha=0.05)
    return model


@torch.no_grad()
@pytest.mark.parametrize("name", MODELS)
def test_advance_in_pieces_equals_whole_row(name: str) -> None:
    model, tokens = build_moved(name), sample_tokens()
    whole = model.features(tokens)
    for cuts in ([1] * T, [5, 1, 9, 2, 7], [T]):
        parts, state = [], None
        for piece in tokens.split(cuts, dim=1):
            features, state = model.advance(piece, state)
            parts.append(features)
        torch.testing.assert_close(torch.cat(parts, dim=1), whole, rtol=1e-4, atol=1e-4)


@torch.no_grad()
def test_cache_with_window_keeps_only_visible_tokens() -> None:
    model = build_random_model(windows="SL", short_window=5)
    _, state = model.advance(sample_tokens())
    kept = [cache.key.size(2) for cache in state.caches if cache.key is not None]
    assert kept == [4, T, 4, T]
