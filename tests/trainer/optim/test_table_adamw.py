"""AdamW for weights in bf16 steps as it does in fp32, and its state can be saved."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.optim import AdamW, Optimizer

from trainer.models.base import ParameterGroup
from trainer.optim.compiled_muon import CompiledMuon
from trainer.optim.optimizers import CautiousDecay, build_group_settings
from trainer.optim.table_adamw import TableAdamW, join_halves, split_halves

SHAPE = (48, 16)
NANOCHAT, SLOW = (0.8, 0.95), (0.99, 0.999)
DECAYS: list[dict[str, Any]] = [{}, {"weight_decay": 0.5}, {"weight_decay": 0.5, "cautious": True}]


def build_group(**fields: Any) -> dict[str, Any]:
    return build_group_settings(ParameterGroup("tables", ("*",), "adamw", 0.02, **fields))


def step(optimizer: Optimizer, parameter: nn.Parameter, number: int) -> None:
    parameter.grad = torch.randn(SHAPE, generator=torch.Generator().manual_seed(number)).bfloat16().to(parameter.dtype)
    optimizer.step()


def build_tables(count: int = 1) -> list[nn.Parameter]:
    torch.manual_seed(0)
    return [nn.Parameter(torch.randn(SHAPE).bfloat16()) for _ in range(count)]


def read_weights(optimizer: Optimizer, table: nn.Parameter) -> Tensor:
    return join_halves(table.detach(), optimizer.state[table]["rest"])


def test_halves_of_weights_join_to_the_same_bits() -> None:
    torch.manual_seed(0)
    bits = torch.randint(-(2**31), 2**31, (100_000,), dtype=torch.int64).to(torch.int32)
    limits = torch.tensor([0, 2**15 - 1, 2**15, 2**15 + 1, 2**16 - 1, -(2**31)], dtype=torch.int64).to(torch.int32)
    weights = torch.cat((bits, limits)).view(torch.float32)
    weights = weights[weights.isfinite()]
    high, rest = split_halves(weights)
    assert torch.equal(join_halves(high, rest).view(torch.int32), weights.view(torch.int32))
    is_tie = rest == -(2**15)
    assert torch.equal(high[~is_tie], weights.bfloat16()[~is_tie])


@pytest.mark.parametrize("fields", DECAYS, ids=["plain", "decay", "cautious"])
@pytest.mark.parametrize(("betas", "tolerance"), [(NANOCHAT, 5e-3), (SLOW, 2e-6)])
def test_weights_equal_those_of_adamw_in_fp32(
    fields: dict[str, Any], betas: tuple[float, float], tolerance: float
) -> None:
    (table,) = build_tables()
    wide = nn.Parameter(table.detach().float())
    group = build_group(betas=betas, **fields)
    ours = TableAdamW([{"params": [table], **group}])
    theirs = CautiousDecay.attach(AdamW([{"params": [wide], **group}], fused=True))
    for number in range(20):
        step(ours, table, number)
        step(theirs, wide, number)
    # A momentum near zero may be rounded to the other side, which turns a cautious decay on or off.
    is_close = (read_weights(ours, table) - wide.detach()).abs() < tolerance * (1 + wide.detach().abs())
    assert is_close.float().mean() > 0.995
    assert torch.equal(table.detach(), split_halves(read_weights(ours, table))[0])


def build_adamw(parameters: list[nn.Parameter], **fields: Any) -> Optimizer:
    return CautiousDecay.attach(AdamW([{"params": parameters, **build_group(**fields)}], fused=True))


BUILDERS: dict[str, tuple[torch.dtype, Callable[[list[nn.Parameter]], Optimizer]]] = {
    "tables": (torch.bfloat16, lambda p: TableAdamW([{"params": p, **build_group(weight_decay=0.1)}])),
    "muon": (torch.float32, lambda p: CompiledMuon(p, backend="eager", normalized=True, cautious=True)),
    "adamw": (torch.float32, lambda p: build_adamw(p, weight_decay=0.1)),
    "cautious": (torch.float32, lambda p: build_adamw(p, weight_decay=0.1, cautious=True)),
}


@pytest.mark.parametrize("kind", BUILDERS)
def test_skipped_step_changes_nothing_even_if_gradients_are_not_finite(kind: str) -> None:
    dtype, build = BUILDERS[kind]
    parameter = nn.Parameter(torch.randn(SHAPE).to(dtype))
    optimizer: Any = build([parameter])
    step(optimizer, parameter, 0)

    def list_copies() -> list[Tensor]:
        return [parameter.detach().clone(), *(value.clone() for value in optimizer.state[parameter].values())]

    before = list_copies()
    for gradient in (torch.ones_like(parameter), torch.full_like(parameter, torch.nan)):
        parameter.grad, optimizer.found_inf = gradient, torch.ones(())
        optimizer.step()
        assert all(map(torch.equal, list_copies(), before))
    optimizer.found_inf = torch.zeros(())
    step(optimizer, parameter, 1)
    assert not any(map(torch.equal, list_copies(), before))
