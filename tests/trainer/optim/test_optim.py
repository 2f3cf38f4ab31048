"""The optimizers of a recipe, in its groups."""

from __future__ import annotations

import copy
import dataclasses
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.optim import AdamW

from trainer.models.base import ParameterGroup, Recipe, Schedule
from trainer.optim.muon import Muon
from trainer.optim.optimizers import (
    OptimizerNotInstalledError,
    apply_schedule,
    assign_parameters,
    build_optimizers,
    check_installed,
    set_learning_rates,
)


def recipe(*groups: ParameterGroup) -> Recipe:
    return Recipe(groups)


MATRICES = ParameterGroup("matrices", ("weight",), "muon", learning_rate=0.1)
REST = ParameterGroup("rest", ("*",), "adamw", learning_rate=0.01, betas=(0.8, 0.9))


def test_first_matching_group_takes_parameter() -> None:
    taken = {group.name: list(mine) for group, mine in assign_parameters(nn.Linear(4, 4), recipe(MATRICES, REST))}
    assert taken == {"matrices": ["weight"], "rest": ["bias"]}


def test_frozen_parameters_have_no_group() -> None:
    model = nn.Linear(4, 4)
    model.bias.requires_grad_(False)
    assert [list(mine) for _, mine in assign_parameters(model, recipe(MATRICES))] == [["weight"]]


def test_parameter_without_group_is_named() -> None:
    with pytest.raises(ValueError, match="matches the parameter bias"):
        assign_parameters(nn.Linear(4, 4), recipe(MATRICES))


def test_muon_group_rejects_vectors() -> None:
    with pytest.raises(ValueError, match="gives bias to Muon"):
        assign_parameters(nn.Linear(4, 4), recipe(ParameterGroup("all", ("*",), "muon", learning_rate=0.1)))


def test_learning_rates_scale_each_groups_top_rate() -> None:
    optimizers = build_optimizers(nn.Linear(4, 4), recipe(MATRICES, REST))
    set_learning_rates(optimizers, 0.5)
    set_learning_rates(optimizers, 0.25)
    assert [optimizer.param_groups[0]["lr"] for optimizer in optimizers] == [0.025, 0.0025]
    assert optimizers[1].param_groups[0]["betas"] == (0.8, 0.9)


def test_schedule_sets_momentum_of_muon_alone() -> None:
    schedule = Schedule(warmdown=0.5, momentum_start=0.85, momentum_end=0.9)
    recipe = Recipe((dataclasses.replace(MATRICES, momentum=0.97), REST), schedule)
    optimizers = build_optimizers(nn.Linear(4, 4), recipe)
    muon, adamw = (optimizer.param_groups[0] for optimizer in optimizers)
    apply_schedule(optimizers, recipe, 0.0, 0)
    assert muon["momentum"] == 0.85
    apply_schedule(optimizers, recipe, 0.5, 10)
    assert muon["momentum"] == 0.97
    apply_schedule(optimizers, recipe, 1.0, 20)
    assert (muon["momentum"], muon["lr"]) == (0.9, 0)
    assert "momentum" not in adamw


def test_optimizer_gets_all_group_settings() -> None:
    matrices = ParameterGroup(
        "matrices", ("weight",), "muon", 0.1, weight_decay=0.2, momentum=0.9, normalized=True, cautious=True
    )
    rest = ParameterGroup("rest", ("*",), "adamw", 0.01, weight_decay=0.3, cautious=True, epsilon=1e-8)
    muon, adamw = build_optimizers(nn.Linear(4, 4), recipe(matrices, rest))
    assert isinstance(muon, Muon)
    wanted = {"lr": 0.1, "weight_decay": 0.2, "momentum": 0.9, "normalized": True, "cautious": True, "name": "matrices"}
    assert wanted.items() <= muon.param_groups[0].items()
    # AdamW's own decay is switched off: ours comes around its step.
    assert {"weight_decay": 0.0, "cautious_decay": 0.3, "eps": 1e-8}.items() <= adamw.param_groups[0].items()


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


def test_cautious_without_decay_changes_nothing() -> None:
    torch.manual_seed(0)
    models = [nn.Linear(6, 5, bias=False)]
    models.append(copy.deepcopy(models[0]))
    gradients = [torch.randn(5, 6) for _ in range(3)]
    for model, cautious in zip(models, (True, False), strict=True):
        run_steps(model, ParameterGroup("all", ("*",), "adamw", 0.05, cautious=cautious), gradients)
    assert torch.equal(models[0].weight, models[1].weight)


EIGHT_BITS = ParameterGroup("all", ("*",), "adamw8bit", 0.01, weight_decay=0.1, betas=(0.9, 0.99), epsilon=1e-8)


def test_adamw8bit_without_package_names_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "bitsandbytes.optim", None)
    with pytest.raises(OptimizerNotInstalledError, match=r"^adamw8bit needs .*: pip install 'dailytrain\[gpu\]'$"):
        check_installed(recipe(EIGHT_BITS))
    check_installed(recipe(REST))


def test_run_with_adamw8bit_without_package_prints_one_line(
    train: Callable[..., int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "bitsandbytes.optim", None)
    assert train(tmp_path, "--budget", "2steps", "--recipe.head.optimizer", "adamw8bit") == 2
    assert capsys.readouterr().err.splitlines()[-1].endswith("pip install 'dailytrain[gpu]'")


@pytest.mark.filterwarnings("ignore:`torch.jit.script_method` is deprecated")  # bitsandbytes, when imported
def test_adamw8bit_stays_near_adamw(tmp_path: Path) -> None:
    torch.manual_seed(0)
    # bitsandbytes keeps tensors of less than 4,096 numbers in 32 bits.
    model, peer = nn.Linear(128, 64, bias=False), nn.Linear(128, 64, bias=False)
    peer.load_state_dict(model.state_dict())
    gradients = [torch.randn(64, 128) for _ in range(6)]
    (optimizer,) = build_optimizers(model, recipe(EIGHT_BITS))
    exact = AdamW(peer.parameters(), lr=0.01, weight_decay=0.1, betas=(0.9, 0.99), eps=1e-8)
    for step, gradient in enumerate(gradients):
        model.weight.grad, peer.weight.grad = gradient.clone(), gradient.clone()
        if step == 3:  # saved as a checkpoint does, and read back by another
            torch.save(optimizer.state_dict(), tmp_path / "optimizer.pt")
            (optimizer,) = build_optimizers(model, recipe(EIGHT_BITS))
            optimizer.load_state_dict(torch.load(tmp_path / "optimizer.pt", weights_only=True))
        optimizer.step()
        exact.step()
    assert optimizer.state[model.weight]["state1"].dtype == torch.uint8
    assert float((model.weight - peer.weight).detach().norm() / peer.weight.detach().norm()) < 0.02


def test_group_with_unknown_optimizer_lists_the_choices() -> None:
    choices = r"\('muon', 'adamw', 'adamw8bit', 'row_adagrad'\)"
    with pytest.raises(ValueError, match=rf"all\.optimizer 'sgd' is not one of {choices}"):
        ParameterGroup("all", ("*",), "sgd", 0.02)  # type: ignore[arg-type]
