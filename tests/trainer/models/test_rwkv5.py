"""RWKV-5: its chunked form equals its recurrence, and its sizes and initial values are the official ones."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
import torch
from torch import Tensor

from trainer.config.parsing import parse_config
from trainer.config.recipe_overrides import override_recipe
from trainer.models import load_architecture, rwkv5
from trainer.ops import recurrence

V = 50


def inputs(length: int, decay: float, channels: int) -> list[Tensor]:
    """Row, decay exponents around `decay`, bonus and a first state, in fp64 with gradients."""
    generator = torch.Generator().manual_seed(length)
    shapes = [*[(1, 2, length, 64)] * 3, (2, channels), (2, channels), (1, 2, 64, 64)]
    found = [torch.randn(shape, dtype=torch.float64, generator=generator) for shape in shapes]
    found[3] += decay
    return [tensor.requires_grad_() for tensor in found]


def run_token_by_token(
    r: Tensor, k: Tensor, v: Tensor, rate: Tensor, bonus: Tensor, state: Tensor
) -> tuple[Tensor, Tensor]:
    read = []
    for t in range(r.size(2)):
        y, state = recurrence.recurrence(r[:, :, t], k[:, :, t], v[:, :, t], rate, bonus, state)
        read.append(y)
    return torch.stack(read, dim=2), state


@pytest.mark.parametrize("channels", [1, 64], ids=["per head", "per channel"])
@pytest.mark.parametrize(("length", "decay"), [(3, -3.0), (64, -1.0), (131, -2.0), (70, 4.0)])
def test_chunked_recurrence_values_and_gradients_equal_recurrence(length: int, decay: float, channels: int) -> None:
    given = inputs(length, decay, channels)
    answers, gradients = [], []
    for form in (recurrence.chunked_recurrence, run_token_by_token):
        r, k, v, exponent, bonus, state = given
        read, after = form(r, k, v, exponent.exp(), bonus, state)
        weights = torch.linspace(-1, 1, read.numel(), dtype=torch.float64).view_as(read)
        gradients.append(torch.autograd.grad((read * weights).sum() + after.square().sum(), given))
        answers.append((read, after))
    torch.testing.assert_close(answers[0], answers[1], rtol=1e-8, atol=1e-8)
    torch.testing.assert_close(gradients[0], gradients[1], rtol=1e-8, atol=1e-8)


def test_chunked_recurrence_extreme_decays_stay_finite_and_exact() -> None:
    given = [tensor.detach().float().requires_grad_() for tensor in inputs(130, 0.0, 64)]
    with torch.no_grad():
        given[3].copy_(torch.linspace(-30, 30, 128).view(2, 64))
    read, after = recurrence.chunked_recurrence(*given[:3], given[3].exp(), *given[4:])
    gradients = torch.autograd.grad(read.sum() + after.sum(), given)
    assert all(tensor.isfinite().all() for tensor in (read, after, *gradients))
    torch.testing.assert_close(
        read, run_token_by_token(*given[:3], given[3].exp(), *given[4:])[0], rtol=1e-4, atol=1e-3
    )


def build_random_model(version: float) -> rwkv5.Model:
    """A model whose branches are not at their initial zero."""
    torch.manual_seed(0)
    model = rwkv5.Model(rwkv5.Config(V, 80, depth=2, width=128, version=version))
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))
    return model.eval()


@pytest.mark.parametrize("version", rwkv5.VERSIONS)
@torch.no_grad()
def test_step_token_by_token_equals_whole_row(version: float) -> None:
    model = build_random_model(version)
    tokens = torch.randint(0, V, (2, 80))
    state, answers = None, []
    for token in tokens.unbind(1):
        logits, state = model.step(token, state)
        answers.append(logits)
    torch.testing.assert_close(torch.stack(answers, 1), model(tokens), rtol=1e-4, atol=1e-4)


@torch.no_grad()
def test_state_with_bf16_weights_or_autocast_stays_fp32() -> None:
    model = build_random_model(5.2)
    tokens = torch.randint(0, V, (1, 20))
    exact = model(tokens)
    with torch.autocast("cpu", torch.bfloat16):
        features, state = model.advance(tokens)
        mixed = model.logits(features)
    assert {block.heads.dtype for block in state} == {torch.float32}
    assert (mixed - exact).abs().mean() < 0.05 * exact.std()
    assert {block.heads.dtype for block in model.bfloat16().advance(tokens)[1]} == {torch.float32}


# --- official sizes, presets and initial values -----------------------------------------------------------------------


def count_parameters(config: Any) -> int:
    with torch.device("meta"):
        return sum(parameter.numel() for parameter in rwkv5.Model(config).parameters())


@pytest.mark.parametrize(("version", "parameters"), [(5.0, 7_517_655_040), (5.1, 7_517_786_112), (5.2, 7_518_044_160)])
def test_rwkv5_7b_has_published_parameter_count(version: float, parameters: int) -> None:
    config = load_architecture("rwkv5-7b").Config.sized(4, 65536, 4096)
    assert count_parameters(dataclasses.replace(config, version=version)) == parameters  # type: ignore[type-var]


def test_rwkv5_initial_values_are_official() -> None:
    torch.manual_seed(0)
    config = rwkv5.Config(300, 8, depth=3, width=128)
    start = rwkv5.Model(config).state_dict()
    i = torch.arange(128)
    expected = {
        "att.time_mix_k": (i / 128) ** (2 / 3),
        "att.time_mix_v": (i / 128) ** (2 / 3) + 0.15,
        "att.time_mix_r": (i / 128) ** (1 / 3),
        "att.time_mix_g": (i / 128) ** (1 / 3),
        "att.time_decay": -6 + 5 * (i / 127) ** 1.35,
        "att.time_faaaa": 0.5 * (1 - i / 127) + 0.1 * ((i + 1) % 3 - 1),
        "att.ln_x.weight": torch.full((128,), (2 / 3) ** 0.7),
        "att.output.weight": torch.zeros(128 * 128),
        "ffn.time_mix_r": (i / 128) ** (2 / 3),
        "ffn.value.weight": torch.zeros(448 * 128),
        "ffn.receptance.weight": torch.zeros(128 * 128),
    }
    for name, value in expected.items():
        torch.testing.assert_close(start[f"blocks.1.{name}"].flatten(), value.float(), msg=name)
    assert start["emb.weight"].abs().max() <= 1e-4
    key, head = start["blocks.1.ffn.key.weight"], start["head.weight"]
    torch.testing.assert_close(key.T @ key, torch.eye(128) * 3.5, rtol=0, atol=1e-4)
    torch.testing.assert_close(head.T @ head, torch.eye(128) * 0.25 * 300 / 128, rtol=0, atol=1e-4)


def test_preset_rwkv5_7b_has_published_settings() -> None:
    config = parse_config(["--out", "run", "--preset", "rwkv5-7b"])
    shape = load_architecture(config.arch).Config.sized(4, 65536, 4096)
    recipe = override_recipe(load_architecture(config.arch).recipe(shape), config.recipe)
    rates = {group.name: group.learning_rate for group in recipe.groups}
    assert (rates["matrices"], rates["decay"], rates["vectors"]) == (2e-4, 4e-4, 2e-4)
    ends = [2e-4 * recipe.schedule.scale(*place) for place in ((0.0, 0), (0.0, 10), (1.0, 10**6))]
    assert ends == pytest.approx([0.4e-4, 2e-4, 1.47e-4])
    assert {(group.betas, group.epsilon) for group in recipe.groups} == {((0.9, 0.99), 1e-8)}
    assert (config.devices, config.train.strategy, config.corpus) == (8, "zero2", "slimpajama")
