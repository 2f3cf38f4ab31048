"""Muon and the groups of a recipe."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

from trainer.models.base import ParameterGroup, Recipe
from trainer.muon import QUINTIC, Muon, orthogonalised
from trainer.optim import assign, build, set_rates


@pytest.mark.parametrize("shape", [(3, 32, 32), (2, 16, 64), (2, 64, 16), (1, 128, 128)])
def test_directions_are_nearly_orthogonal(shape: tuple[int, ...]) -> None:
    torch.manual_seed(0)
    values = torch.linalg.svdvals(orthogonalised(torch.randn(shape)))
    # A square random matrix has singular values near zero, which five iterations cannot lift all the way.
    assert values.max() < 1.15
    assert values.quantile(0.1) > 0.8


def test_directions_keep_the_matrix_own_directions() -> None:
    torch.manual_seed(0)
    matrix = torch.randn(24, 40)
    u, _, v = torch.linalg.svd(matrix, full_matrices=False)
    ours = orthogonalised(matrix[None])[0]
    assert torch.nn.functional.cosine_similarity(ours.flatten(), (u @ v).flatten(), dim=0) > 0.99


def test_a_gradient_of_zero_moves_nothing() -> None:
    assert not orthogonalised(torch.zeros(2, 4, 8)).any()


@pytest.mark.parametrize("shape", [(48, 32), (32, 48), (32, 32)])
def test_it_agrees_with_torchs_muon_on_one_matrix(shape: tuple[int, int]) -> None:
    """Torch iterates in bf16, we in fp32 on a CPU: equal up to that."""
    torch.manual_seed(0)
    ours = nn.Parameter(torch.randn(shape))
    theirs = copy.deepcopy(ours)
    settings = {"lr": 0.05, "momentum": 0.9, "weight_decay": 0.1}
    optimizers = [Muon([ours], **settings, coefficients=QUINTIC), torch.optim.Muon([theirs], **settings)]
    start = ours.detach().clone()
    for _ in range(5):
        gradient = torch.randn(shape)
        ours.grad, theirs.grad = gradient.clone(), gradient.clone()
        for optimizer in optimizers:
            optimizer.step()
    moved = (ours - start).detach(), (theirs - start).detach()
    assert float((moved[0] - moved[1]).norm() / moved[1].norm()) < 0.02


def test_matrices_of_a_shape_go_together_as_they_would_alone() -> None:
    torch.manual_seed(0)
    together = [nn.Parameter(torch.randn(8, 16)) for _ in range(3)]
    alone = copy.deepcopy(together)
    optimizers = [Muon(together), *(Muon([parameter]) for parameter in alone)]
    for ours, theirs in zip(together, alone, strict=True):
        ours.grad = torch.randn(8, 16)
        theirs.grad = ours.grad.clone()
    for optimizer in optimizers:
        optimizer.step()
    for ours, theirs in zip(together, alone, strict=True):
        torch.testing.assert_close(ours, theirs)


def test_a_saved_optimizer_goes_on_to_the_last_digit() -> None:
    torch.manual_seed(0)
    gradients = [torch.randn(8, 8) for _ in range(6)]

    def steps(parameter: nn.Parameter, optimizer: Muon, some: list[torch.Tensor]) -> None:
        for gradient in some:
            parameter.grad = gradient.clone()
            optimizer.step()

    first = nn.Parameter(torch.randn(8, 8))
    second = copy.deepcopy(first)
    whole, before = Muon([first]), Muon([second])
    steps(first, whole, gradients)
    steps(second, before, gradients[:3])
    after = Muon([second])
    after.load_state_dict(before.state_dict())
    steps(second, after, gradients[3:])
    assert torch.equal(first, second)


def recipe(*groups: ParameterGroup) -> Recipe:
    return Recipe(groups)


MATRICES = ParameterGroup("matrices", ("weight",), "muon", learning_rate=0.1)
REST = ParameterGroup("rest", ("*",), "adamw", learning_rate=0.01, betas=(0.8, 0.9))


def test_the_first_group_that_matches_takes_a_parameter() -> None:
    taken = {group.name: list(mine) for group, mine in assign(nn.Linear(4, 4), recipe(MATRICES, REST))}
    assert taken == {"matrices": ["weight"], "rest": ["bias"]}


def test_frozen_parameters_belong_to_no_group() -> None:
    model = nn.Linear(4, 4)
    model.bias.requires_grad_(False)
    assert [list(mine) for _, mine in assign(model, recipe(MATRICES))] == [["weight"]]


def test_a_parameter_without_a_group_is_named() -> None:
    with pytest.raises(ValueError, match="takes the parameter bias"):
        assign(nn.Linear(4, 4), recipe(MATRICES))


def test_muon_refuses_what_is_no_matrix() -> None:
    with pytest.raises(ValueError, match="gives bias to Muon"):
        assign(nn.Linear(4, 4), recipe(ParameterGroup("all", ("*",), "muon", learning_rate=0.1)))


def test_rates_follow_the_schedule_from_each_groups_own_top() -> None:
    optimizers = build(nn.Linear(4, 4), recipe(MATRICES, REST))
    set_rates(optimizers, 0.5)
    set_rates(optimizers, 0.25)
    assert [optimizer.param_groups[0]["lr"] for optimizer in optimizers] == [0.025, 0.0025]
    assert optimizers[1].param_groups[0]["betas"] == (0.8, 0.9)
