"""Muon: against torch's, against exact singular values, its options against their papers' formulas, and compiled."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.distributed
from torch import Tensor, fx, nn

from trainer.optim.compiled_muon import CompiledMuon
from trainer.optim.muon import POLAR_EXPRESS, QUINTIC, Coefficients, Muon, orthogonalize

SHAPES = [(3, 32, 32), (2, 16, 64), (2, 64, 16), (2, 24, 40), (1, 128, 128)]


def exactly(matrices: Tensor, coefficients: Coefficients) -> Tensor:
    """The same polynomials, of singular values, in float64: U p(S) V' of U S V'."""
    u, values, v = torch.linalg.svd(matrices.double(), full_matrices=False)
    values = values / (values.norm(dim=-1, keepdim=True) * 1.02)
    for a, b, c in coefficients:
        values = values * (a + b * values**2 + c * values**4)
    return u * values[..., None, :] @ v


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("coefficients", [POLAR_EXPRESS, QUINTIC], ids=["polar", "quintic"])
def test_orthogonalize_equals_polynomial_of_singular_values(shape: tuple[int, ...], coefficients: Coefficients) -> None:
    torch.manual_seed(0)
    matrices = torch.randn(shape)
    ours = orthogonalize(matrices, coefficients).double()
    torch.testing.assert_close(ours, exactly(matrices, coefficients), rtol=0, atol=1e-4)


@pytest.mark.parametrize("shape", [(16, 64), (32, 32)])
@pytest.mark.parametrize("rank", [1, 3])
def test_low_rank_gradient_stays_low_rank(shape: tuple[int, int], rank: int) -> None:
    """Early gradients are nearly so: what rounding leaves in the other directions must not be lifted to size."""
    torch.manual_seed(0)
    values = torch.linalg.svdvals(orthogonalize((torch.randn(shape[0], rank) @ torch.randn(rank, shape[1]))[None])[0])
    assert values[:rank].min() > 0.8
    assert values[rank:].max() < 0.01


@pytest.mark.parametrize("shape", [(32, 48), (32, 32), (64, 16)])
def test_muon_equals_torch_muon(shape: tuple[int, int]) -> None:
    """Torch iterates in bf16, we here in what suits the machine: equal up to that.

    Its input has norm 1 where ours has 1 / 1.02, for which the first polynomial makes up here.
    """
    torch.manual_seed(0)
    ours = nn.Parameter(torch.randn(shape))
    theirs = copy.deepcopy(ours)
    settings = {"lr": 0.05, "momentum": 0.9, "weight_decay": 0.1}
    (a, b, c), *others = QUINTIC
    same = [(a * 1.02, b * 1.02**3, c * 1.02**5), *others]
    optimizers = [Muon([ours], **settings, coefficients=same), torch.optim.Muon([theirs], **settings)]
    for _ in range(6):
        before = ours.detach().clone(), theirs.detach().clone()
        gradient = torch.randn(shape)
        ours.grad, theirs.grad = gradient.clone(), gradient.clone()
        for optimizer in optimizers:
            optimizer.step()
        moved = (ours - before[0]).detach(), (theirs - before[1]).detach()
        assert float((moved[0] - moved[1]).norm() / moved[1].norm()) < 0.025


def some_steps(parameters: list[nn.Parameter], optimizer: Muon, gradients: list[list[Tensor]]) -> None:
    for step in gradients:
        for parameter, gradient in zip(parameters, step, strict=True):
            parameter.grad = gradient.clone()
        optimizer.step()


OPTIONS = [{}, {"normalized": True}, {"cautious": True, "weight_decay": 0.5}]


@pytest.mark.parametrize("options", OPTIONS, ids=["plain", "normalized", "cautious"])
@pytest.mark.parametrize("shape", [(8, 16), (2, 8, 16)], ids=["matrices", "stacks"])
def test_stacked_step_equals_single_steps(shape: tuple[int, ...], options: dict[str, float]) -> None:
    torch.manual_seed(0)
    together = [nn.Parameter(torch.randn(shape)) for _ in range(3)]
    alone = [nn.Parameter(matrix.clone()) for matrix in torch.stack(list(together)).detach().view(-1, 8, 16)]
    gradients = [[torch.randn(shape) for _ in range(3)] for _ in range(3)]
    some_steps(together, Muon(together, **options), gradients)
    for number, parameter in enumerate(alone):
        mine = [[torch.stack(step).view(-1, 8, 16)[number]] for step in gradients]
        some_steps([parameter], Muon([parameter], **options), mine)
    torch.testing.assert_close(torch.stack(list(together)).view(-1, 8, 16), torch.stack(alone))


def test_normalized_updates_equal_normuon() -> None:
    """Algorithm 1 of arXiv 2510.05491, one neuron after the other; the norm is the orthogonal update's own."""
    torch.manual_seed(0)
    parameter = nn.Parameter(torch.zeros(6, 10))
    weight, momentum, means = torch.zeros(6, 10), torch.zeros(6, 10), torch.zeros(6)
    gradients = [[torch.randn(6, 10) * torch.arange(1, 7)[:, None]] for _ in range(4)]
    settings = {"lr": 0.1, "momentum": 0.9, "normalized": True, "variance_momentum": 0.8}
    some_steps([parameter], Muon([parameter], **settings, precision="fp32"), gradients)
    for (gradient,) in gradients:
        momentum = 0.9 * momentum + 0.1 * gradient
        update = orthogonalize((0.1 * gradient + 0.9 * momentum)[None])[0]
        even = torch.empty_like(update)
        for neuron, row in enumerate(update):
            means[neuron] = 0.8 * means[neuron] + 0.2 * row.square().mean()
            even[neuron] = row / means[neuron].sqrt()
        weight -= 0.1 * even * update.norm() / even.norm()
    torch.testing.assert_close(parameter.detach(), weight, rtol=1e-4, atol=1e-5)


def test_cautious_decay_skips_growing_weights() -> None:
    torch.manual_seed(0)
    start = torch.randn(6, 10)
    gradient = [[torch.randn(6, 10)]]
    plain, cautious, free = (nn.Parameter(start.clone()) for _ in range(3))
    some_steps([plain], Muon([plain], lr=0.1, weight_decay=0.5), gradient)
    some_steps([cautious], Muon([cautious], lr=0.1, weight_decay=0.5, cautious=True), gradient)
    some_steps([free], Muon([free], lr=0.1), gradient)
    inwards = (start - free) * start >= 0
    assert 0 < inwards.sum() < inwards.numel()
    torch.testing.assert_close(cautious, torch.where(inwards, plain, free))


COMPILED_SHAPES = [(24, 24), (24, 24), (24, 48), (40, 8), (40, 8), (3, 8, 40)]
COMPILED_OPTIONS: list[dict[str, Any]] = [
    {},
    {"weight_decay": 0.1},
    {"weight_decay": 0.1, "cautious": True, "normalized": True},
]


class CompilationCounter:
    """A backend that counts graphs and runs them as they are."""

    def __init__(self) -> None:
        self.number = 0

    def __call__(self, module: fx.GraphModule, _: Any) -> Callable[..., Any]:
        self.number += 1
        return module.forward


def run_steps(build: Callable[..., Muon], steps: int = 3, **options: Any) -> tuple[Muon, list[Tensor]]:
    """Step parameters of several shapes at rates that change."""
    torch.manual_seed(0)
    parameters = [nn.Parameter(torch.randn(shape)) for shape in COMPILED_SHAPES]
    optimizer = build(parameters, **options)
    for step in range(steps):
        for parameter in parameters:
            parameter.grad = torch.randn_like(parameter)
        optimizer.param_groups[0]["lr"] = 0.02 / (1 + step)
        optimizer.param_groups[0]["momentum"] = 0.9 + 0.01 * step
        optimizer.step()
    return optimizer, parameters


def assert_equal_steps(backend: Any, **options: Any) -> None:
    plain, wanted = run_steps(Muon, **options)
    compiled, found = run_steps(CompiledMuon, backend=backend, **options)
    torch.testing.assert_close(found, wanted, rtol=1e-5, atol=1e-5)
    theirs, ours = (optimizer.state_dict()["state"] for optimizer in (plain, compiled))
    torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("options", COMPILED_OPTIONS, ids=["plain", "decay", "normuon"])
def test_compiled_muon_equals_muon_to_rounding(options: dict[str, Any]) -> None:
    assert_equal_steps("eager", **options, precision="fp32")


def test_compile_step_compiles_all_and_changes_nothing() -> None:
    backend = CompilationCounter()

    def build(parameters: list[nn.Parameter], **options: Any) -> Muon:
        optimizer = CompiledMuon(parameters, backend=backend, **options)
        before = [parameter.clone() for parameter in parameters]
        optimizer.compile_step()
        assert all(map(torch.equal, parameters, before))
        assert not optimizer.state
        assert backend.number == len(set(COMPILED_SHAPES))
        return optimizer

    run_steps(build, **COMPILED_OPTIONS[-1])
    assert backend.number == len(set(COMPILED_SHAPES))  # new rates compile nothing
