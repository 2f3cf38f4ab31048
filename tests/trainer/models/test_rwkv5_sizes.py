"""RWKV-5's sizes, presets, initial values and recipe are the official ones."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
import torch

from trainer.config.parsing import parse_config
from trainer.config.recipe_overrides import override_recipe
from trainer.models import PRESETS, load_architecture, rwkv5


def count_parameters(config: Any) -> int:
    with torch.device("meta"):
        return sum(parameter.numel() for parameter in rwkv5.Model(config).parameters())


@pytest.mark.parametrize(("version", "parameters"), [(5.0, 7_517_655_040), (5.1, 7_517_786_112), (5.2, 7_518_044_160)])
def test_rwkv5_7b_has_published_parameter_count(version: float, parameters: int) -> None:
    config = load_architecture("rwkv5-7b").Config.sized(4, 65536, 4096)
    assert count_parameters(dataclasses.replace(config, version=version)) == parameters  # type: ignore[type-var]


def test_rwkv5_presets_ignore_depth() -> None:
    assert {name.removeprefix("rwkv5-") for name in PRESETS} == set(rwkv5.SHAPES)
    for name in PRESETS:
        sized = load_architecture(name).Config.sized
        assert sized(9, 65536, 1024) == sized(2, 65536, 1024)


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


def test_rwkv5_recipe_depends_on_published_or_small_size() -> None:
    recipes = {width: rwkv5.recipe(rwkv5.Config(50, 8, width=width)) for width in (256, 768, 2048, 4096)}
    for width, rate in {768: 6e-4, 2048: 3e-4, 4096: 2e-4}.items():
        assert recipes[width].groups[0].learning_rate == pytest.approx(rate, rel=0.06), "the published ones"
    large, small = recipes[768], recipes[256]
    assert (large.schedule.shape, large.schedule.warmup_steps, large.clip, large.l2wrap) == ("cosine", 10, 1.0, 1e-4)
    assert 6e-4 * large.schedule.scale(1.0, 1000) == pytest.approx(1e-5)
    assert (small.schedule.shape, small.clip, small.l2wrap) == ("trapezoid", None, 0.0)


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
