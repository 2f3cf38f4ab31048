"""The baseline with each option alone and with all together, and the caches of all architectures."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
import torch.nn.functional as F

from tests.support.gpt_models import OPTIONS, T, V, build_random_model, sample_tokens
from trainer.models import ARCHITECTURES, litgpt, load_architecture
from trainer.ops.devices import get_row_gradients


@pytest.mark.parametrize("option", OPTIONS)
def test_backward_with_option_reaches_every_parameter(option: str) -> None:
    model, tokens = build_random_model(**OPTIONS[option]), sample_tokens()
    F.cross_entropy(model(tokens[:, :-1]).flatten(0, 1), tokens[:, 1:].flatten()).backward()
    tables = {"memory.table": get_row_gradients(model.memory.table)} if model.memory else {}
    silent = [
        name for name, parameter in model.named_parameters() if parameter.grad is None or not parameter.grad.any()
    ]
    assert silent == list(tables)
    assert all(sums.any() for gradients in tables.values() for _, sums, _ in gradients.iterate_sums())


@torch.no_grad()
def test_attention_short_window_hides_distant_tokens() -> None:
    block, context = (
        build_random_model(windows="S", short_window=3).blocks[0].attention,
        build_random_model().build_inputs(sample_tokens(rows=1)),
    )
    x = torch.randn(1, T, 32)
    changed = x.clone()
    changed[:, 0] += 1
    same = (block(x, context) - block(changed, context)).abs().amax(-1)[0] < 1e-6
    assert not same[:3].any()
    assert same[3:].all()


@torch.no_grad()
def test_document_mask_isolates_documents() -> None:
    """Positions differ, which a rotation does not mind: only distances count."""
    model, tokens = build_random_model(document_mask=True, windows="SL", short_window=6), sample_tokens()
    torch.testing.assert_close(model(tokens)[:, T // 2 :], model(tokens[:, T // 2 :]), rtol=1e-4, atol=1e-5)
    open_model = build_random_model(document_mask=False, windows="SL", short_window=6)
    assert (open_model(tokens)[:, T // 2 :] - open_model(tokens[:, T // 2 :])).abs().max() > 1e-2


# --- `advance` with a cache or state, piece by piece ------------------------------------------------------------------


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
