"""Graphs split into their blocks compute the same, and equal blocks are compiled once at any depth."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import fx

from tests.support.traced_models import build_pair, compute_loss, sample_rows
from trainer.graph.blocks import count_calls, split_blocks
from trainer.graph.model import GraphModel
from trainer.training import compilation
from trainer.training.objective import Objective

# torch.compile reads it of activations.
pytestmark = pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor")


def compile_blocks(model: GraphModel) -> list[int]:
    """Compile the blocks of training by a backend that counts; return the list that it appends to."""
    compiled: list[int] = []

    def count(module: fx.GraphModule, _: Any) -> Callable[..., Any]:
        compiled.append(len(module.graph.nodes))
        return module.forward

    for block in split_blocks(model.training_passes.features.module):
        block.compile(dynamic=False, fullgraph=True, backend=count)
    return compiled


@pytest.mark.parametrize(
    ("name", "depth", "different"), [pytest.param("rwkv5", 3, 2, marks=pytest.mark.slow), ("gpt", 4, 3)]
)
def test_split_blocks_compute_the_same_and_equal_ones_compile_once(name: str, depth: int, different: int) -> None:
    """Two kinds differ: the first reads only the embeddings. Each second block of gpt also has value embeddings."""
    model = build_pair(name, depth=depth).graph
    module = model.training_passes.features.module
    calls = count_calls(module.graph, module)
    inputs, targets = sample_rows()
    parameters = list(model.parameters())
    wanted = torch.autograd.grad(compute_loss(model, inputs, targets), parameters, allow_unused=True)
    compiled = compile_blocks(model)
    blocks = split_blocks(module)
    assert list(map(id, split_blocks(module))) == list(map(id, blocks)), "a second split has the same blocks"
    found = torch.autograd.grad(compute_loss(model, inputs, targets), parameters, allow_unused=True)
    assert len(compiled) == different
    assert sum(node.op == "call_module" for node in module.graph.nodes) == depth
    assert count_calls(module.graph, module) < calls
    torch.testing.assert_close(found, wanted)


@pytest.mark.slow
def test_large_graph_is_compiled_by_block_with_the_same_loss(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compilation, "MAX_CALLS", 10)
    monkeypatch.setattr(compilation, "BACKEND", "eager")
    objective = Objective(build_pair("gpt").graph)
    rows = sample_rows()
    wanted = objective(*rows)
    settings: Any = SimpleNamespace(is_sharded=False)
    for fullgraph in (True, False):  # again, as after a graph break
        compilation.compile_objective(objective, settings, fullgraph)
        assert objective.features == objective.model.features
        torch.testing.assert_close(objective(*rows), wanted)
