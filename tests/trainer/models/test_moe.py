"""The mixture of experts: routing, places, load balance, and counted costs."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from trainer.accounting import flops
from trainer.models import gpt, moe
from trainer.ops import balance

V, T, WIDTH = 96, 24, 32
SIZE: dict[str, Any] = {"width": WIDTH, "heads": 2, "experts": 4, "expert_width": 16, "shared_width": 32}


def build_config(**fields: Any) -> moe.Config:
    return dataclasses.replace(moe.Config.sized(2, V, T), **{**SIZE, **fields})


def build_experts(**fields: Any) -> moe.Experts:
    torch.manual_seed(0)
    experts = moe.Experts(build_config(zero_init=False, **fields))
    with torch.no_grad():
        experts.load_bias.normal_(std=0.1)
    return experts


def compute_token(experts: moe.Experts, x: Tensor, chosen: list[int]) -> Tensor:
    """The output for a token `[width]` that finds places at these experts, one product at a time."""
    scores = torch.sigmoid(experts.router(x))
    total = scores[(scores + experts.load_bias).topk(experts.config.chosen).indices].sum()
    result = experts.down(F.relu(experts.up(x)).square())
    for expert in chosen:
        inner = F.relu(experts.experts_up[expert] @ x).square()
        result = result + scores[expert] / total * (experts.experts_down[expert] @ inner)
    return result


@torch.no_grad()
@pytest.mark.parametrize("capacity", [0.25, 0.5, 4.0])
def test_output_equals_loop_over_tokens_and_places(capacity: float) -> None:
    experts = build_experts(capacity=capacity)
    x = torch.randn(3, T, WIDTH)
    found, skipped = experts(x), 0
    for row, outputs in zip(x, found, strict=True):
        left = [experts.config.places] * 4
        for token, output in zip(row, outputs, strict=True):
            wanted = (torch.sigmoid(experts.router(token)) + experts.load_bias).topk(2).indices.tolist()
            chosen = [expert for expert in wanted if left[expert]]
            skipped += len(wanted) - len(chosen)
            for expert in chosen:
                left[expert] -= 1
            torch.testing.assert_close(output, compute_token(experts, token, chosen), rtol=1e-4, atol=1e-5)
    assert (skipped > 0) == (capacity < 1)


def test_load_bias_gets_the_load_as_gradient_and_no_other() -> None:
    experts = build_experts()
    x = torch.randn(2, T, WIDTH)
    scores = torch.sigmoid(experts.router(x)) + experts.load_bias
    load = torch.bincount(scores.topk(2, dim=-1).indices.flatten(), minlength=4) / (2 * T * 2)
    for factor in (1.0, -5.0):
        experts.zero_grad()
        (factor * experts(x)).sum().backward()
        torch.testing.assert_close(experts.load_bias.grad, (load - load.mean()) * balance.SCALE)
        assert experts.router.weight.grad.any()


def test_flops_and_parameters_cover_all_places_and_experts() -> None:
    config = build_config(capacity=1.0)
    dense = dataclasses.replace(gpt.Config.sized(2, V, T), width=WIDTH, heads=2)
    tokens = torch.zeros(1, T, dtype=torch.int64)
    found, plain = (flops.count_flops(build(c), tokens) for build, c in ((moe.Model, config), (gpt.Model, dense)))
    # Per block: 4 x width in the MLP against 32 + 2 x 16 and the router. Forward and backward are three products.
    saved = 2 * 3 * 2 * (2 * WIDTH * (128 - 64) - WIDTH * 4)
    assert plain - found == pytest.approx(saved)
    parameters = [sum(p.numel() for p in block.mlp.parameters()) for block in moe.Model(config).blocks]
    assert parameters == [2 * WIDTH * (32 + 4 * 16) + WIDTH * 4 + 4] * 2
