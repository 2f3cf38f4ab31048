"""Muon: against torch's, against exact singular values, and its options against their papers' formulas."""

from __future__ import annotations

import copy
from collections.abc import Iterator

import pytest
import torch
import torch.distributed
from torch import Tensor, nn

from trainer.optim.muon import (
    POLAR_EXPRESS,
    QUINTIC,
    Coefficients,
    Muon,
    Precision,
    iterate_gram_polynomials,
    iterate_polynomials,
    normalize_neurons,
    orthogonalize,
)

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


@pytest.mark.parametrize("shape", SHAPES)
def test_orthogonalize_bf16_equals_fp32_to_rounding(shape: tuple[int, ...]) -> None:
    torch.manual_seed(0)
    matrices = torch.randn(shape)
    whole, rounded = (orthogonalize(matrices, precision=precision) for precision in ("fp32", "bf16"))
    assert rounded.dtype == torch.float32
    assert (rounded - whole).norm() < 0.1 * whole.norm()


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
@pytest.mark.parametrize("shape", SHAPES)
def test_orthogonalize_result_is_nearly_orthogonal(shape: tuple[int, ...], precision: Precision) -> None:
    torch.manual_seed(0)
    values = torch.linalg.svdvals(orthogonalize(torch.randn(shape), precision=precision))
    # A square random matrix has singular values near zero, which five iterations cannot lift all the way.
    assert values.max() < 1.15
    assert values.quantile(0.1) > 0.8


def test_orthogonalize_keeps_singular_vectors() -> None:
    torch.manual_seed(0)
    matrix = torch.randn(24, 40)
    u, _, v = torch.linalg.svd(matrix, full_matrices=False)
    ours = orthogonalize(matrix[None])[0]
    assert torch.nn.functional.cosine_similarity(ours.flatten(), (u @ v).flatten(), dim=0) > 0.99


def test_gram_iteration_equals_plain_iteration() -> None:
    torch.manual_seed(0)
    x = torch.randn(2, 16, 64)
    x = x / x.norm(dim=(-2, -1), keepdim=True)
    forms = [form(x, POLAR_EXPRESS) for form in (iterate_polynomials, iterate_gram_polynomials)]
    torch.testing.assert_close(*forms, rtol=0, atol=1e-5)


@pytest.mark.parametrize("shape", [(16, 64), (32, 32)])
@pytest.mark.parametrize("rank", [1, 3])
def test_low_rank_gradient_stays_low_rank(shape: tuple[int, int], rank: int) -> None:
    """Early gradients are nearly so: what rounding leaves in the other directions must not be lifted to size."""
    torch.manual_seed(0)
    values = torch.linalg.svdvals(orthogonalize((torch.randn(shape[0], rank) @ torch.randn(rank, shape[1]))[None])[0])
    assert values[:rank].min() > 0.8
    assert values[rank:].max() < 0.01


def test_zero_gradient_changes_nothing() -> None:
    assert not orthogonalize(torch.zeros(2, 4, 8)).any()
    assert not normalize_neurons(torch.zeros(2, 4, 8), torch.zeros(2, 4, 1), 0.05).any()


@pytest.mark.parametrize("shape", [(48, 32), (32, 48), (32, 32), (16, 64), (64, 16)])
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


@pytest.mark.parametrize("options", OPTIONS, ids=["plain", "normalized", "cautious"])
def test_muon_state_dict_resumes_exactly(options: dict[str, float]) -> None:
    torch.manual_seed(0)
    gradients = [[torch.randn(8, 8)] for _ in range(6)]
    first = nn.Parameter(torch.randn(8, 8))
    second = copy.deepcopy(first)
    before = Muon([second], **options)
    some_steps([first], Muon([first], **options), gradients)
    some_steps([second], before, gradients[:3])
    after = Muon([second], **options)
    after.load_state_dict(before.state_dict())
    some_steps([second], after, gradients[3:])
    assert torch.equal(first, second)


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


def test_normalize_neurons_equalizes_rows_and_keeps_norm() -> None:
    torch.manual_seed(0)
    directions = torch.randn(2, 6, 10) * torch.arange(1, 7)[:, None]
    even = normalize_neurons(directions, torch.zeros(2, 6, 1), 0.05)
    torch.testing.assert_close(even.norm(dim=(-2, -1)), directions.norm(dim=(-2, -1)))
    rows = even.norm(dim=-1)
    torch.testing.assert_close(rows, rows[:, :1].expand_as(rows), rtol=1e-4, atol=0)


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


@pytest.fixture
def one_process() -> Iterator[None]:
    """A process group of one, in this process."""
    torch.distributed.init_process_group("gloo", store=torch.distributed.HashStore(), rank=0, world_size=1)
    yield
    torch.distributed.destroy_process_group()


@pytest.mark.usefixtures("one_process")
@pytest.mark.parametrize("options", OPTIONS, ids=["plain", "normalized", "cautious"])
def test_sharded_step_equals_unsharded(options: dict[str, float]) -> None:
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import Shard, distribute_tensor

    torch.manual_seed(0)
    mesh = init_device_mesh("cpu", (1,))
    whole = nn.Parameter(torch.randn(8, 16))
    sharded = nn.Parameter(distribute_tensor(whole.detach().clone(), mesh, [Shard(0)]))
    gradients = [[torch.randn(8, 16)] for _ in range(3)]
    some_steps([whole], Muon([whole], **options), gradients)
    theirs = [[distribute_tensor(gradient, mesh, [Shard(0)])] for (gradient,) in gradients]
    some_steps([sharded], Muon([sharded], **options), theirs)
    assert torch.equal(whole, sharded.full_tensor())  # type: ignore[operator]
