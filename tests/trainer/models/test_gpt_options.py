"""The baseline with each option alone and with all together."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from tests.support.gpt_models import OPTIONS, T, V, build_random_model, sample_tokens
from trainer.models import smear
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


@torch.no_grad()
def test_smear_attention_mixes_each_key_with_the_previous() -> None:
    torch.manual_seed(0)
    attention = smear.SmearAttention(smear.Config(V, T, width=32, heads=2), 0)
    x = torch.randn(1, 5, 32)
    plain = attention.split_heads(attention.key(x))
    own = torch.sigmoid(attention.gate)[:, None]
    smeared = attention.compute_keys(x, None)
    torch.testing.assert_close(smeared[0, 0], plain[0, 0])
    torch.testing.assert_close(smeared[0, 3], own * plain[0, 3] + (1 - own) * plain[0, 2])
    torch.testing.assert_close(attention.compute_keys(x[:, 3:], x[:, 2:3]), smeared[:, 3:])
