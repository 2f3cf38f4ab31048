"""MLPs with ReLU^2 are found in graphs and replaced by one function, with the same results."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, fx

from tests.support.traced_models import build_pair, compute_loss, sample_rows
from trainer.graph.mlps import fuse_mlps
from trainer.graph.model import GraphModel


def compute_mlp(x: Tensor, up: Tensor, down: Tensor) -> Tensor:
    return F.linear(F.linear(x, up).relu().square(), down)


def count_calls(model: GraphModel, training: bool) -> int:
    graph: fx.Graph = model.traced_passes[training].features.module.graph
    return sum(node.target is compute_mlp for node in graph.nodes)


@pytest.mark.parametrize(("name", "mlps"), [("gpt", 2), ("litgpt", 0)])
def test_fuse_mlps_replaces_relu2_in_training_alone(name: str, mlps: int) -> None:
    model = build_pair(name).graph
    inputs, targets = sample_rows()
    wanted = torch.autograd.grad(compute_loss(model, inputs, targets), list(model.parameters()), allow_unused=True)
    assert fuse_mlps(model, compute_mlp) == mlps
    assert (count_calls(model, True), count_calls(model, False)) == (mlps, 0)
    found = torch.autograd.grad(compute_loss(model, inputs, targets), list(model.parameters()), allow_unused=True)
    torch.testing.assert_close(found, wanted)


def test_fuse_mlps_leaves_a_hidden_layer_that_is_read_twice() -> None:
    model = build_pair("gpt").graph
    graph = model.traced_passes[True].features.module.graph
    hidden = next(node for node in graph.nodes if node.name.startswith("squared_relu"))
    with graph.inserting_after(hidden):
        graph.call_function(torch.neg, (hidden,))
    assert fuse_mlps(model, compute_mlp) == 1
