"""The baseline with each option alone and with all together."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import pytest
import torch
import torch.nn.functional as F

from tests.support.gpt_models import OPTIONS, SIZE, SWITCHES, T, V, build_random_model, sample_tokens
from trainer.accounting import flops
from trainer.models import gpt, smear
from trainer.ops.devices import get_row_gradients
from trainer.optim import optimizers


@pytest.fixture(params=OPTIONS)
def fields(request: pytest.FixtureRequest) -> dict[str, Any]:
    return OPTIONS[request.param]


def test_switches_cover_every_option() -> None:
    assert len(SWITCHES) == 11


def test_backward_with_option_reaches_every_parameter(fields: dict[str, Any]) -> None:
    model, tokens = build_random_model(**fields), sample_tokens()
    loss = F.cross_entropy(model(tokens[:, :-1]).flatten(0, 1), tokens[:, 1:].flatten())
    loss.backward()
    tables = {"memory.table": get_row_gradients(model.memory.table)} if model.memory else {}
    assert [name for name, parameter in model.named_parameters() if parameter.grad is None] == list(tables)
    assert all(sums.any() for gradients in tables.values() for _, sums, _ in gradients.iterate_sums())
    silent = [n for n, parameter in model.named_parameters() if n not in tables and not parameter.grad.any()]
    assert silent == []


@torch.no_grad()
def test_logits_with_option_are_causal(fields: dict[str, Any]) -> None:
    model, tokens = build_random_model(**fields), sample_tokens()
    answers = model(tokens)
    assert answers.shape == (2, T, V)
    assert answers.dtype == torch.float32
    for cut in (1, 9, T - 1):
        changed = tokens.clone()
        changed[:, cut:] = 8 + (changed[:, cut:] + 5) % 80
        torch.testing.assert_close(model(changed)[:, :cut], answers[:, :cut], rtol=1e-5, atol=1e-5)
        torch.testing.assert_close(model(tokens[:, :cut]), answers[:, :cut], rtol=1e-5, atol=1e-5)


@torch.no_grad()
def test_logits_with_option_are_stateless(fields: dict[str, Any]) -> None:
    model, tokens = build_random_model(**fields), sample_tokens()
    first = model(tokens)
    model(sample_tokens(seed=1))
    assert torch.equal(model(tokens), first)
    torch.testing.assert_close(model(tokens[1:]), first[1:], rtol=1e-5, atol=1e-5)


def test_untrained_model_with_option_predicts_uniform(fields: dict[str, Any]) -> None:
    torch.manual_seed(0)
    model, tokens = gpt.Model(dataclasses.replace(gpt.Config.sized(2, V, T), **{**SIZE, **fields})), sample_tokens()
    loss = F.cross_entropy(model(tokens[:, :-1]).flatten(0, 1), tokens[:, 1:].flatten())
    assert loss.item() == pytest.approx(math.log(V), rel=0.02)


def test_recipe_with_option_covers_every_parameter(fields: dict[str, Any]) -> None:
    model = build_random_model(**fields)
    taken = [name for _, mine in optimizers.assign_parameters(model, gpt.recipe(model.config)) for name in mine]
    assert sorted(taken) == sorted(name for name, _ in model.named_parameters())


@pytest.mark.parametrize(
    ("depth", "width", "heads", "parameters"),
    [(2, 128, 2, 3_539_050), (4, 256, 4, 11_534_650), (12, 768, 6, 135_267_586)],
)
def test_sized_config_has_expected_parameter_count(depth: int, width: int, heads: int, parameters: int) -> None:
    config = gpt.Config.sized(depth, 8192, 256)
    with torch.device("meta"):
        model = gpt.Model(config)
    assert (config.width, config.heads) == (width, heads)
    assert sum(p.numel() for p in model.parameters()) == parameters


def test_window_of_last_block_is_unlimited() -> None:
    config = gpt.Config(V, 2048, depth=8, windows="SSSL", short_window=1024)
    assert [config.window(block) for block in range(8)] == [1024, 1024, 1024, None, 1024, 1024, 1024, None]
    assert dataclasses.replace(config, depth=7).window(6) is None


def test_value_embeddings_are_in_every_second_block_and_the_last() -> None:
    assert [gpt.Config(V, T, depth=5).has_value_embedding(block) for block in range(5)] == [True, False] * 2 + [True]


@pytest.mark.parametrize(
    "fields",
    [
        *({"heads": 3}, {"depth": 0}, {"windows": "LX"}, {"windows": ""}, {"width": 2, "heads": 2}),
        *({"softcap": -1.0}, {"short_window": 0}),
    ],
)
def test_config_invalid_fields_raise_value_error(fields: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="gpt: "):
        dataclasses.replace(gpt.Config.sized(4, V, T), **fields)


@torch.no_grad()
def test_logits_with_softcap_stay_below_it() -> None:
    model = build_random_model()
    model.head.weight.mul_(1e4)
    assert model(sample_tokens()).abs().max() <= 15


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
def test_attention_without_rotation_ignores_order() -> None:
    attention = build_random_model(rotary=False, value_embeddings=False).blocks[0].attention
    x, inputs = torch.randn(1, T, 32), build_random_model().build_inputs(sample_tokens(rows=1))
    shuffled = torch.cat((x[:, : T - 1].flip(1), x[:, T - 1 :]), dim=1)
    torch.testing.assert_close(attention(x, inputs)[:, -1], attention(shuffled, inputs)[:, -1], rtol=1e-5, atol=1e-5)


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


def test_recipe_weight_decay_falls_with_square_of_width() -> None:
    rates = {
        width: {group.name: group.weight_decay for group in gpt.recipe(gpt.Config(V, T, width=width)).groups}
        for width in (128, 768, 1536)
    }
    assert [rates[width]["matrices"] for width in (128, 768, 1536)] == [0.2, 0.2, pytest.approx(0.05)]
    assert not any(rates[768][name] for name in rates[768] if name != "matrices")


@torch.no_grad()
def test_logits_in_bf16_are_close_to_fp32(fields: dict[str, Any]) -> None:
    model, tokens = build_random_model(**fields), sample_tokens()
    whole = model(tokens)
    with torch.autocast("cpu", torch.bfloat16):
        mixed = model(tokens)
    assert mixed.dtype == torch.float32
    assert (mixed - whole).square().mean() < 0.01 * whole.square().mean()


def test_flop_count_ignores_windows_and_masks() -> None:
    """Attention counts as if every position saw every other, and element-wise parts as nothing."""
    counts = {
        flops.count_flops(build_random_model(**fields), sample_tokens(rows=1))
        for fields in ({}, {"windows": "S"}, {"document_mask": True}, {"backout": False, "rotary": False})
    }
    assert len(counts) == 1
    # Per token: 6 a parameter of a matrix or gate, and 12 x width x T a block.
    matrices = sum(
        parameter.numel()
        for name, parameter in build_random_model().named_parameters()
        if parameter.ndim == 2 and "embedding" not in name
    )
    assert counts.pop() == pytest.approx(6 * matrices + 12 * 4 * 32 * T, rel=0.01)


@pytest.mark.slow
def test_features_compile_as_one_graph() -> None:
    """Traced and differentiated as torch.compile does it; what machine code comes of that is torch's business."""
    model, tokens = build_random_model(**{**OPTIONS["everything"], "depth": 1}), sample_tokens()
    torch.compiler.reset()  # a function has only so many compiled variants, and other tests made some
    traced = torch.compile(model.features, backend="aot_eager", fullgraph=True, dynamic=False)
    answers, gradients = [], []
    for features in (traced, model.features):
        answers.append(features(tokens))
        answers[-1][..., 0].sum().backward()
        gradients.append([parameter.grad for parameter in model.parameters() if parameter.grad is not None])
        model.zero_grad(set_to_none=True)
    torch.testing.assert_close(answers[0], answers[1])
    torch.testing.assert_close(gradients[0], gradients[1], rtol=1e-4, atol=1e-5)


def test_initial_scales_change_queries_and_mlp_only() -> None:
    torch.manual_seed(0)
    plain = gpt.Model(gpt.Config.sized(2, V, T))
    torch.manual_seed(0)
    config = dataclasses.replace(gpt.Config.sized(2, V, T), qk_gain=2.88, mlp_init=0.2)
    changed = dict(gpt.Model(config).named_parameters())
    for name, parameter in plain.named_parameters():
        factor = 2.0 if name.endswith("gain") else 0.5 if name.endswith("mlp.up.weight") else 1.0
        torch.testing.assert_close(changed[name], parameter * factor)
    with pytest.raises(ValueError, match="must be positive"):
        dataclasses.replace(config, mlp_init=0.0)


@torch.no_grad()
def test_value_gate_starts_at_half_its_range() -> None:
    tokens, x, layer = sample_tokens(), torch.randn(2, T, 32), build_random_model().blocks[1].attention
    layer.value_gate.zero_()
    added = layer.compute_values(x, tokens) - layer.split_heads(layer.value(x))
    ratio = added / layer.split_heads(layer.value_embedding(tokens))
    assert ratio.mean().item() == pytest.approx(1.5, rel=1e-3)


@torch.no_grad()
def test_larger_rope_base_turns_slower() -> None:
    tokens = sample_tokens()
    slow, fast = (build_random_model(rope_base=base).build_inputs(tokens).cosine[-1, 0] for base in (1e5, 1e4))
    assert torch.equal(slow[:1], fast[:1])
    assert (slow[1:] >= fast[1:]).all()
    assert slow.sum() > fast.sum()
