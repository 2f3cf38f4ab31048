"""Muon's compiled step equals Muon's, and is compiled once for each shape."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, fx, nn

from trainer.models.base import ParameterGroup, Recipe, Schedule
from trainer.optim.compiled_muon import CompiledMuon
from trainer.optim.muon import Muon
from trainer.optim.optimizers import build_optimizers

SHAPES = [(24, 24), (24, 24), (24, 48), (40, 8), (40, 8), (3, 8, 40)]
OPTIONS: list[dict[str, Any]] = [
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
    parameters = [nn.Parameter(torch.randn(shape)) for shape in SHAPES]
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


@pytest.mark.parametrize("options", OPTIONS, ids=["plain", "decay", "normuon"])
def test_compiled_muon_equals_muon_to_rounding(options: dict[str, Any]) -> None:
    assert_equal_steps("eager", **options, precision="fp32")


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # of modules that the compiler imports
@pytest.mark.skipif(shutil.which("g++") is None, reason="torch.compile needs g++ on a CPU")
def test_muon_compiled_to_machine_code_equals_muon() -> None:
    assert_equal_steps("inductor", **OPTIONS[-1], precision="fp32")


def test_compile_step_compiles_all_and_changes_nothing() -> None:
    backend = CompilationCounter()

    def build(parameters: list[nn.Parameter], **options: Any) -> Muon:
        optimizer = CompiledMuon(parameters, backend=backend, **options)
        before = [parameter.clone() for parameter in parameters]
        optimizer.compile_step()
        assert all(map(torch.equal, parameters, before))
        assert not optimizer.state
        assert backend.number == len(set(SHAPES))
        return optimizer

    run_steps(build, **OPTIONS[-1])
    assert backend.number == len(set(SHAPES))  # new rates compile nothing


def test_build_optimizers_compiles_muon_only_with_a_backend() -> None:
    group = ParameterGroup("all", ("*",), "muon", 0.02)
    recipe = Recipe((group,), Schedule())
    model = nn.Linear(4, 4, bias=False)
    assert [type(each) for each in build_optimizers(model, recipe)] == [Muon]
    assert [type(each) for each in build_optimizers(model, recipe, backend="eager")] == [CompiledMuon]
