"""The baseline: each of its parts, on its own and with the others."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from trainer.accounting import flops
from trainer.models import gpt, smear
from trainer.optim import optimizers

V, T, END = 96, 24, 7
SIZE = {"depth": 4, "width": 32, "heads": 2, "end_of_text": END}
SWITCHES = [field.name for field in dataclasses.fields(gpt.Config) if field.type == "bool"]
OPTIONS: dict[str, dict[str, Any]] = {
    "all defaults": {},
    **{f"{name} the other way": {name: not getattr(gpt.Config(V, T), name)} for name in SWITCHES},
    "nothing": {**dict.fromkeys(SWITCHES, False), "softcap": 0.0},
    "everything": {**dict.fromkeys(SWITCHES, True), "windows": "SSSL", "short_window": 6, "mlp": "swiglu"},
    "swiglu": {"mlp": "swiglu"},
    "no cap": {"softcap": 0.0},
    "windows": {"windows": "SL", "short_window": 5},
    "one block": {"depth": 1},
}


def built(seed: int = 0, **fields: Any) -> gpt.Model:
    """A model all of whose parts do something: some start at zero."""
    torch.manual_seed(seed)
    model = gpt.Model(dataclasses.replace(gpt.Config.sized(2, V, T), **{**SIZE, **fields}))
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))
    return model


def row(seed: int = 0, rows: int = 2) -> Tensor:
    """Tokens with an end of text in the middle."""
    tokens = torch.randint(8, V, (rows, T), generator=torch.Generator().manual_seed(seed))
    tokens[:, [0, T // 2]] = END
    return tokens


@pytest.fixture(params=OPTIONS)
def fields(request: pytest.FixtureRequest) -> dict[str, Any]:
    return OPTIONS[request.param]


def test_there_is_a_switch_for_every_part() -> None:
    assert len(SWITCHES) == 11


def test_every_parameter_gets_a_gradient(fields: dict[str, Any]) -> None:
    model, tokens = built(**fields), row()
    loss = F.cross_entropy(model(tokens[:, :-1]).flatten(0, 1), tokens[:, 1:].flatten())
    loss.backward()
    assert [name for name, parameter in model.named_parameters() if parameter.grad is None] == []
    silent = [name for name, parameter in model.named_parameters() if not parameter.grad.any()]
    assert silent == []


@torch.no_grad()
def test_it_is_causal_and_answers_all_positions(fields: dict[str, Any]) -> None:
    model, tokens = built(**fields), row()
    answers = model(tokens)
    assert answers.shape == (2, T, V)
    assert answers.dtype == torch.float32
    for cut in (1, 9, T - 1):
        changed = tokens.clone()
        changed[:, cut:] = 8 + (changed[:, cut:] + 5) % 80
        torch.testing.assert_close(model(changed)[:, :cut], answers[:, :cut], rtol=1e-5, atol=1e-5)
        torch.testing.assert_close(model(tokens[:, :cut]), answers[:, :cut], rtol=1e-5, atol=1e-5)


@torch.no_grad()
def test_it_is_stateless(fields: dict[str, Any]) -> None:
    model, tokens = built(**fields), row()
    first = model(tokens)
    model(row(seed=1))
    assert torch.equal(model(tokens), first)
    torch.testing.assert_close(model(tokens[1:]), first[1:], rtol=1e-5, atol=1e-5)


def test_untrained_it_scores_the_uniform_rate(fields: dict[str, Any]) -> None:
    torch.manual_seed(0)
    model, tokens = gpt.Model(dataclasses.replace(gpt.Config.sized(2, V, T), **{**SIZE, **fields})), row()
    loss = F.cross_entropy(model(tokens[:, :-1]).flatten(0, 1), tokens[:, 1:].flatten())
    assert loss.item() == pytest.approx(math.log(V), rel=0.02)


def test_the_recipe_takes_every_parameter(fields: dict[str, Any]) -> None:
    model = built(**fields)
    taken = [name for _, mine in optimizers.assign(model, gpt.recipe(model.config)) for name in mine]
    assert sorted(taken) == sorted(name for name, _ in model.named_parameters())


@pytest.mark.parametrize(
    ("depth", "width", "heads", "parameters"),
    [(2, 128, 2, 3_539_050), (4, 256, 4, 11_534_650), (12, 768, 6, 135_267_586)],
)
def test_one_dial_sizes_it(depth: int, width: int, heads: int, parameters: int) -> None:
    config = gpt.Config.sized(depth, 8192, 256)
    with torch.device("meta"):
        model = gpt.Model(config)
    assert (config.width, config.heads) == (width, heads)
    assert sum(p.numel() for p in model.parameters()) == parameters


def test_swiglu_has_about_as_many_parameters() -> None:
    with torch.device("meta"):
        sizes = [
            sum(p.numel() for p in gpt.Model(gpt.Config(64, 16, width=768, heads=6, mlp=mlp)).parameters())
            for mlp in ("relu2", "swiglu")
        ]
    assert sizes[1] == pytest.approx(sizes[0], rel=0.01)


def test_the_last_block_sees_everything() -> None:
    config = gpt.Config(V, 2048, depth=8, windows="SSSL", short_window=1024)
    assert [config.window(block) for block in range(8)] == [1024, 1024, 1024, None, 1024, 1024, 1024, None]
    assert dataclasses.replace(config, depth=7).window(6) is None


def test_every_second_block_has_value_embeddings_and_the_last_one_does() -> None:
    assert [gpt.Config(V, T, depth=5).has_value_embedding(block) for block in range(5)] == [True, False] * 2 + [True]


@pytest.mark.parametrize(
    "fields",
    [
        *({"heads": 3}, {"depth": 0}, {"windows": "LX"}, {"windows": ""}, {"width": 2, "heads": 2}),
        *({"softcap": -1.0}, {"short_window": 0}, {"mlp": "gelu"}),
    ],
)
def test_sizes_that_contradict_each_other_are_refused(fields: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="gpt: "):
        dataclasses.replace(gpt.Config.sized(4, V, T), **fields)


@torch.no_grad()
def test_logits_stay_below_the_cap() -> None:
    model = built()
    model.head.weight.mul_(1e4)
    assert model(row()).abs().max() <= 15


@torch.no_grad()
def test_a_short_window_hides_what_is_further_away() -> None:
    block, context = built(windows="S", short_window=3).blocks[0].attention, built().context(row(rows=1), None)
    x = torch.randn(1, T, 32)
    changed = x.clone()
    changed[:, 0] += 1
    same = (block(x, context) - block(changed, context)).abs().amax(-1)[0] < 1e-6
    assert not same[:3].any()
    assert same[3:].all()


@torch.no_grad()
def test_a_document_is_read_as_if_it_stood_alone() -> None:
    """Positions differ, which a rotation does not mind: only distances count."""
    model, tokens = built(document_mask=True, windows="SL", short_window=6), row()
    torch.testing.assert_close(model(tokens)[:, T // 2 :], model(tokens[:, T // 2 :]), rtol=1e-4, atol=1e-5)
    open_model = built(document_mask=False, windows="SL", short_window=6)
    assert (open_model(tokens)[:, T // 2 :] - open_model(tokens[:, T // 2 :])).abs().max() > 1e-2


@torch.no_grad()
def test_without_rotation_order_is_not_seen_within_a_block() -> None:
    attention = built(rotary=False, value_embeddings=False).blocks[0].attention
    x, context = torch.randn(1, T, 32), built().context(row(rows=1), None)
    shuffled = torch.cat((x[:, : T - 1].flip(1), x[:, T - 1 :]), dim=1)
    torch.testing.assert_close(attention(x, context)[:, -1], attention(shuffled, context)[:, -1], rtol=1e-5, atol=1e-5)


@torch.no_grad()
def test_smearing_mixes_each_key_with_the_one_before() -> None:
    torch.manual_seed(0)
    attention = smear.Attention(smear.Config(V, T, width=32, heads=2), 0)
    x = torch.randn(1, 5, 32)
    plain = attention.split(attention.key(x))
    own = torch.sigmoid(attention.gate)[:, None]
    smeared = attention.keys(x, None)
    torch.testing.assert_close(smeared[0, 0], plain[0, 0])
    torch.testing.assert_close(smeared[0, 3], own * plain[0, 3] + (1 - own) * plain[0, 2])
    torch.testing.assert_close(attention.keys(x[:, 3:], x[:, 2:3]), smeared[:, 3:])


def test_weight_decay_falls_with_the_square_of_a_large_width() -> None:
    rates = {
        width: {group.name: group.weight_decay for group in gpt.recipe(gpt.Config(V, T, width=width)).groups}
        for width in (128, 768, 1536)
    }
    assert [rates[width]["matrices"] for width in (128, 768, 1536)] == [0.2, 0.2, pytest.approx(0.05)]
    assert not any(rates[768][name] for name in rates[768] if name != "matrices")


@torch.no_grad()
def test_in_bf16_it_answers_about_the_same(fields: dict[str, Any]) -> None:
    model, tokens = built(**fields), row()
    whole = model(tokens)
    with torch.autocast("cpu", torch.bfloat16):
        mixed = model(tokens)
    assert mixed.dtype == torch.float32
    assert (mixed - whole).square().mean() < 0.01 * whole.square().mean()


def test_windows_and_masks_do_not_change_what_is_counted() -> None:
    """Attention counts as if every position saw every other, and element-wise parts as nothing."""
    counts = {
        flops.count(built(**fields), row(rows=1)).per_token
        for fields in ({}, {"windows": "S"}, {"document_mask": True}, {"backout": False, "rotary": False})
    }
    assert len(counts) == 1
    # Per token: 6 a parameter of a matrix or gate, and 12 x width x T a block.
    matrices = sum(
        parameter.numel()
        for name, parameter in built().named_parameters()
        if parameter.ndim == 2 and "embedding" not in name
    )
    assert counts.pop() == pytest.approx(6 * matrices + 12 * 4 * 32 * T, rel=0.01)


def test_it_is_one_graph() -> None:
    """Traced and differentiated as torch.compile does it; what machine code comes of that is torch's business."""
    model, tokens = built(**{**OPTIONS["everything"], "depth": 1, "mlp": "relu2"}), row()
    traced = torch.compile(model.features, backend="aot_eager", fullgraph=True, dynamic=False)
    answers, gradients = [], []
    for features in (traced, model.features):
        answers.append(features(tokens))
        answers[-1][..., 0].sum().backward()
        gradients.append([parameter.grad for parameter in model.parameters() if parameter.grad is not None])
        model.zero_grad(set_to_none=True)
    torch.testing.assert_close(answers[0], answers[1])
    torch.testing.assert_close(gradients[0], gradients[1], rtol=1e-4, atol=1e-5)
