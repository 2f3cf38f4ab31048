"""The cost of an initialization is counted before it runs, and limited by the size of its tensors."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from benchmarks.cheats import forged_files
from benchmarks.cheats.base import WIDTH, Config, Model, T, V, vary
from tests.support.traced_models import edit_files, trace
from trainer.graph import initialization as initialization_module
from trainer.graph.files import GraphError, TracedArchitecture
from trainer.graph.initialization import compute_initial_tensors, count_charged_flops, count_initialization_cost
from trainer.graph.reading import parse_files
from trainer.graph.summary import describe_traced
from trainer.graph.trace import trace_architecture
from trainer.models import ARCHITECTURES


def trace_constructor(construct: Callable[[nn.Module], None]) -> TracedArchitecture:
    def build(self: Model, config: Config) -> None:
        Model.__init__(self, config)
        construct(self)

    return trace_architecture(vary(__init__=build), Config(V, T))  # type: ignore[arg-type]


@pytest.mark.parametrize("change", [forged_files.compute_in_initialization, forged_files.hold_in_initialization])
def test_initialization_beyond_its_stored_tensors_is_refused(
    change: Callable[[forged_files.Files], forged_files.Files],
) -> None:
    traced = parse_files(change(trace_constructor(lambda _: None).to_files()))
    for compute in (count_initialization_cost, compute_initial_tensors):
        with pytest.raises(GraphError, match=r"the constructor (computes|needs) .* are allowed"):
            compute(traced.initialization)


def square_matrices(model: nn.Module) -> None:
    with torch.no_grad():
        x = torch.randn(256, 256)
        for _ in range(4):
            x = torch.tanh(x @ x)
        model.mix.weight.copy_(x[:WIDTH, :WIDTH])  # type: ignore[union-attr]


def test_initialization_beyond_its_allowance_is_charged_or_does_not_trace(monkeypatch: pytest.MonkeyPatch) -> None:
    assert count_charged_flops(trace_constructor(lambda _: None).initialization) == 0
    assert count_charged_flops(trace_constructor(square_matrices).initialization) > 4 * 2 * 256**3
    monkeypatch.setattr(initialization_module, "FREE_FLOPS", 0)
    with pytest.raises(GraphError, match="the constructor computes"):
        trace_constructor(square_matrices)


@pytest.mark.parametrize(
    "initialize",
    [
        lambda weight: nn.init.orthogonal_(weight),
        lambda weight: nn.init.trunc_normal_(weight),
        lambda weight: weight.data.copy_(torch.linalg.qr(torch.randn_like(weight))[0]),
        lambda weight: nn.init.kaiming_uniform_(weight),
    ],
)
def test_honest_initialization_passes_without_the_free_part(
    initialize: Callable[[Any], Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(initialization_module, "FREE_FLOPS", 0)
    monkeypatch.setattr(initialization_module, "FREE_BYTES", 0)

    def construct(model: nn.Module) -> None:
        with torch.no_grad():
            for parameter in model.parameters():
                initialize(parameter)

    assert count_initialization_cost(trace_constructor(construct).initialization).flops > 0


def test_peak_bytes_contain_all_tensors_that_are_used_later() -> None:
    def construct(model: nn.Module) -> None:
        parts = [torch.randn(1000) for _ in range(8)]
        model.register_buffer("total", torch.stack(parts).sum(0))
        for _ in range(8):
            torch.randn(1000)  # freed at once

    empty, full = (trace_constructor(each).initialization for each in (lambda _: None, construct))
    grown = count_initialization_cost(full).peak_bytes - count_initialization_cost(empty).peak_bytes
    assert 16 * 4000 - 4 * V * WIDTH <= grown <= 17 * 4000


def test_region_in_initialization_is_refused() -> None:
    region = {"operator": "region::no_grad", "arguments": [], "graph": {"inputs": [], "calls": [], "outputs": []}}
    with pytest.raises(GraphError, match="initialization has a region"):
        parse_files(edit_files(lambda table: table["graph"]["calls"].append(region), "init.json"))


def divide_by_minus_one(append: forged_files.Append) -> None:
    """The processor ends a process that divides -2**63 by -1."""
    smallest, divisor = (append("aten::full", [4], n, dtype={"dtype": "int64"}) for n in (-(2**63), -1))
    append("aten::div.Tensor_mode", smallest, divisor, rounding_mode={"text": "trunc"})


def test_division_that_would_end_the_process_is_refused() -> None:
    files = forged_files.edit_initialization(divide_by_minus_one)(trace("nanogpt").to_files())
    with pytest.raises(GraphError, match="rounding_mode='trunc'"):
        compute_initial_tensors(parse_files(files).initialization)


@pytest.mark.parametrize(
    "name", [pytest.param(n, marks=[] if n in ("gpt", "rwkv5") else pytest.mark.slow) for n in ARCHITECTURES]
)
def test_own_architecture_needs_little_for_its_initialization(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Only orthogonal matrices, of rwkv5, cost more than the allowance."""
    charged = count_charged_flops(trace(name).initialization)
    assert charged < 1024 * describe_traced(trace(name))["flops_per_token"], "a small step"
    assert (charged > 0) == (name == "rwkv5")
    monkeypatch.setattr(initialization_module, "FREE_FLOPS", 0)
    monkeypatch.setattr(initialization_module, "FREE_BYTES", 0)
    monkeypatch.setattr(initialization_module, "FLOPS_PER_ELEMENT", 100)
    count_initialization_cost(trace(name).initialization)
