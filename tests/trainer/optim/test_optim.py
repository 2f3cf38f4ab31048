"""The optimizers of a recipe, in its groups, and its schedule over the used part of the budget."""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn
from torch.optim import AdamW

from trainer.models.base import ParameterGroup, Recipe, Schedule
from trainer.optim.optimizers import (
    apply_schedule,
    assign_parameters,
    build_optimizers,
    check_installed,
)


def recipe(*groups: ParameterGroup) -> Recipe:
    return Recipe(groups)


MATRICES = ParameterGroup("matrices", ("weight",), "muon", learning_rate=0.1)
REST = ParameterGroup("rest", ("*",), "adamw", learning_rate=0.01, betas=(0.8, 0.9))


def test_first_matching_group_takes_parameter() -> None:
    model = nn.Linear(4, 4)
    taken = {group.name: list(mine) for group, mine in assign_parameters(model, recipe(MATRICES, REST))}
    assert taken == {"matrices": ["weight"], "rest": ["bias"]}
    with pytest.raises(ValueError, match="matches the parameter bias"):
        assign_parameters(model, recipe(MATRICES))
    with pytest.raises(ValueError, match="gives bias to Muon"):
        assign_parameters(model, recipe(ParameterGroup("all", ("*",), "muon", learning_rate=0.1)))
    with pytest.raises(ValueError, match=r"all\.optimizer 'sgd' is not one of \('muon', 'adamw', "):
        ParameterGroup("all", ("*",), "sgd", 0.02)  # type: ignore[arg-type]
    model.bias.requires_grad_(False)
    assert [list(mine) for _, mine in assign_parameters(model, recipe(MATRICES))] == [["weight"]], "of those trained"


def test_schedule_scales_rates_and_sets_momentum_of_muon_alone() -> None:
    schedule = Schedule(warmdown=0.5, momentum_start=0.85, momentum_end=0.9)
    recipe = Recipe((dataclasses.replace(MATRICES, momentum=0.97), REST), schedule)
    optimizers = build_optimizers(nn.Linear(4, 4), recipe)
    muon, adamw = (optimizer.param_groups[0] for optimizer in optimizers)
    apply_schedule(optimizers, recipe, 0.0, 0)
    assert muon["momentum"] == 0.85
    apply_schedule(optimizers, recipe, 0.5, 10)
    assert (muon["momentum"], muon["lr"], adamw["lr"]) == (0.97, 0.1, 0.01)
    apply_schedule(optimizers, recipe, 1.0, 20)
    assert (muon["momentum"], muon["lr"], adamw["lr"]) == (0.9, 0, 0)
    assert "momentum" not in adamw


def run_steps(model: nn.Module, group: ParameterGroup, gradients: list[torch.Tensor]) -> None:
    (optimizer,) = build_optimizers(model, recipe(group))
    for gradient in gradients:
        model.weight.grad = gradient.clone()
        optimizer.step()


def test_cautious_decay_with_adamw_equals_paper() -> None:
    torch.manual_seed(0)
    model = nn.Linear(6, 5, bias=False)
    gradients = [torch.randn(5, 6) for _ in range(6)]
    weight = model.weight.detach().double()
    mean, square = torch.zeros_like(weight), torch.zeros_like(weight)
    for step, gradient in enumerate(gradients, 1):
        mean = 0.8 * mean + 0.2 * gradient
        square = 0.9 * square + 0.1 * gradient**2
        update = (mean / (1 - 0.8**step)) / ((square / (1 - 0.9**step)).sqrt() + 1e-8)
        decayed = torch.where(update * weight >= 0, weight, 0)
        weight = weight - 0.05 * (update + 0.4 * decayed)
    cautious = ParameterGroup(
        "all", ("*",), "adamw", 0.05, weight_decay=0.4, cautious=True, betas=(0.8, 0.9), epsilon=1e-8
    )
    run_steps(model, cautious, gradients)
    torch.testing.assert_close(model.weight.detach().double(), weight, rtol=1e-5, atol=1e-6)


def test_run_with_adamw8bit_without_package_prints_one_line(
    train: Callable[..., int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "bitsandbytes.optim", None)
    assert train(tmp_path, "--budget", "2steps", "--recipe.head.optimizer", "adamw8bit") == 2
    assert capsys.readouterr().err.splitlines()[-1].endswith("pip install 'dailytrain[gpu]'")
    check_installed(recipe(REST))


@pytest.mark.filterwarnings("ignore:`torch.jit.script_method` is deprecated")  # bitsandbytes, when imported
def test_adamw8bit_stays_near_adamw(tmp_path: Path) -> None:
    eight_bits = recipe(
        ParameterGroup("all", ("*",), "adamw8bit", 0.01, weight_decay=0.1, betas=(0.9, 0.99), epsilon=1e-8)
    )
    torch.manual_seed(0)
    # bitsandbytes keeps tensors of less than 4,096 numbers in 32 bits.
    model, peer = nn.Linear(128, 64, bias=False), nn.Linear(128, 64, bias=False)
    peer.load_state_dict(model.state_dict())
    gradients = [torch.randn(64, 128) for _ in range(6)]
    (optimizer,) = build_optimizers(model, eight_bits)
    exact = AdamW(peer.parameters(), lr=0.01, weight_decay=0.1, betas=(0.9, 0.99), eps=1e-8)
    for step, gradient in enumerate(gradients):
        model.weight.grad, peer.weight.grad = gradient.clone(), gradient.clone()
        if step == 3:  # saved as a checkpoint does, and read back by another
            torch.save(optimizer.state_dict(), tmp_path / "optimizer.pt")
            (optimizer,) = build_optimizers(model, eight_bits)
            optimizer.load_state_dict(torch.load(tmp_path / "optimizer.pt", weights_only=True))
        optimizer.step()
        exact.step()
    assert optimizer.state[model.weight]["state1"].dtype == torch.uint8
    assert float((model.weight - peer.weight).detach().norm() / peer.weight.detach().norm()) < 0.02


def test_trapezoid_rises_stays_and_falls() -> None:
    schedule = Schedule(warmup=0.1, warmdown=0.4, final=0.2)
    assert [schedule.scale(f) for f in (0.05, 0.1, 0.5, 0.6)] == [0.5, 1, 1, 1]
    assert schedule.scale(0.8) == pytest.approx(0.6)
    assert schedule.scale(1.0) == pytest.approx(0.2)


@given(st.floats(0, 0.5), st.floats(0, 0.5), st.floats(0, 1), st.floats(0, 1), st.sampled_from(["trapezoid", "cosine"]))
def test_schedule_scale_is_between_0_and_1(
    warmup: float, warmdown: float, final: float, fraction: float, shape: Any
) -> None:
    scale = Schedule(warmup, warmdown, final, shape=shape).scale(fraction)
    assert (min(final, 0.005) if shape == "cosine" else 0) <= scale <= 1 + 1e-9
    assert Schedule(warmup, warmdown, final).scale(0) > 0, "of the first step"


def test_cosine_rises_and_falls() -> None:
    schedule = Schedule(warmup=0.1, final=0.2, shape="cosine")
    assert [schedule.scale(f) for f in (0.05, 0.1, 0.55, 1.0)] == pytest.approx([0.5, 1, 0.6, 0.2])
    assert schedule.scale(0.3) > schedule.scale(0.4) > schedule.scale(0.9)


def test_warmup_steps_start_at_a_fifth() -> None:
    schedule = Schedule(warmup=0.0, final=0.735, shape="cosine", warmup_steps=10)
    assert [schedule.scale(0.0, steps) for steps in (0, 5, 10, 11)] == pytest.approx([0.2, 0.6, 1, 1])
    assert schedule.scale(1.0, 1000) == pytest.approx(0.735)


def test_momentum_rises_stays_and_falls_with_the_rate() -> None:
    schedule = Schedule(warmdown=0.4, momentum_start=0.85, momentum_warmup=0.2, momentum_end=0.9)
    values = [schedule.compute_momentum(0.97, fraction) for fraction in (0, 0.1, 0.2, 0.6, 0.8, 1)]
    assert values == pytest.approx([0.85, 0.91, 0.97, 0.97, 0.935, 0.9])
    assert {Schedule().compute_momentum(0.95, fraction) for fraction in (0, 0.5, 1)} == {0.95}


@pytest.mark.parametrize(
    ("wrong", "reason"),
    [
        ({"warmup": 0.5, "warmdown": 0.6}, "must fit"),
        ({"warmup_steps": -1}, "warmup_steps must be at least 0"),
        ({"shape": "cosin"}, r"a schedule's shape 'cosin' is not one of \(.*'cosine'\)"),
        *(({name: value}, name) for name, value in (("momentum_start", 1.0), ("momentum_end", -0.1))),
        ({"momentum_warmup": 0.0}, "momentum_warmup"),
    ],
)
def test_schedule_invalid_fields_raise_value_error(wrong: dict[str, Any], reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        Schedule(**wrong)
