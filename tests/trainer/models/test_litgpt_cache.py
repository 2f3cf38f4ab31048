"""litgpt's models with litgpt's own cache, piece by piece, equal one pass over the whole row."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from trainer.models import litgpt

T, V = 24, 96
SMALL = {"n_layer": 2, "n_embd": 32, "n_head": 4, "intermediate_size": 64}
FAMILIES: dict[str, tuple[str, dict[str, Any]]] = {
    "GPT-NeoX": ("pythia-14m", {}),
    "Llama, grouped queries": ("tiny-llama-1.1b", {"n_query_groups": 2, "head_size": 8}),
    "one query group": ("pythia-14m", {"n_query_groups": 1, "head_size": 8}),
    "Gemma 2, windows and soft caps": ("Gemma-2-2b", {"n_query_groups": 2, "head_size": 8, "sliding_window_size": 5}),
}
CUTS = {"one by one": [1] * T, "in pieces": [5, 1, 9, 2, 7], "at once": [T]}


def build_random_model(family: str) -> litgpt.Model:
    name, fields = FAMILIES[family]
    torch.manual_seed(0)
    model = litgpt.Model(litgpt.Config(V, T, name, {**SMALL, **fields})).eval()
    for parameter in model.parameters():
        parameter.data.add_(torch.randn_like(parameter), alpha=0.1)
    return model


@torch.no_grad()
@pytest.mark.parametrize("cuts", CUTS)
@pytest.mark.parametrize("family", FAMILIES)
def test_advance_in_pieces_equals_whole_row(family: str, cuts: str) -> None:
    model, tokens = build_random_model(family), torch.randint(V, (2, T), generator=torch.Generator().manual_seed(1))
    parts, state = [], None
    for piece in tokens.split(CUTS[cuts], dim=1):
        features, state = model.advance(piece, state)
        parts.append(features)
    torch.testing.assert_close(torch.cat(parts, dim=1), model.features(tokens), rtol=1e-4, atol=1e-5)


@torch.no_grad()
def test_litgpt_cache_belongs_to_state_not_model() -> None:
    model = build_random_model("GPT-NeoX")
    first, second = (torch.randint(V, (1, 8), generator=torch.Generator().manual_seed(seed)) for seed in (1, 2))
    _, one = model.advance(first[:, :4])
    _, other = model.advance(second[:, :4])
    torch.testing.assert_close(model.advance(first[:, 4:], one)[0], model.features(first)[:, 4:], rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(
        model.advance(second[:, 4:], other)[0], model.features(second)[:, 4:], rtol=1e-4, atol=1e-5
    )
    assert all(block.attn.kv_cache is None for block in model.gpt.transformer.h)
    assert not any("cache" in name for name, _ in model.named_buffers())
