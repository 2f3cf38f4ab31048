"""Which matrix products of a traced architecture are converted to fp8. `tests/cuda` compiles them for a GPU."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from trainer.graph.fp8 import convert_graph_to_fp8
from trainer.graph.model import GraphModel, build_model
from trainer.graph.trace import trace_architecture
from trainer.models import load_architecture

DEPTH, PRODUCTS = 2, 6


class DoubledLinear(nn.Module):
    """Doubles the result, so that a test sees where it was used."""

    def forward(self, x: Tensor, weight: Tensor) -> Tensor:
        return 2 * F.linear(x, weight)


def build_graph_model(width: int) -> GraphModel:
    module = load_architecture("gpt")
    config = module.Config(64, 16, depth=DEPTH, width=width, heads=2, zero_init=False)
    return build_model(trace_architecture(module, config))


def test_products_of_training_and_its_head_are_converted_and_evaluation_is_not() -> None:
    model, tokens = build_graph_model(32), torch.arange(16)[None]
    features = torch.randn(1, 4, 32)

    def compute() -> list[Tensor]:
        training = [model.train().features(tokens), model.logits(features)]
        return [*training, model.eval().features(tokens), model.logits(features)]

    before = compute()
    products = DEPTH * PRODUCTS + 1
    assert convert_graph_to_fp8(model, lambda _: DoubledLinear()) == products, "blocks' matrices and head, no gates"
    after = compute()
    assert [torch.allclose(*pair) for pair in zip(before, after, strict=True)] == [False, False, True, True]
    assert not any("fp8" in name for name in model.state_dict())


def test_sizes_that_are_no_multiple_of_16_stay() -> None:
    assert convert_graph_to_fp8(build_graph_model(40), lambda _: DoubledLinear()) == 0


def test_training_gradients_flow_to_the_stored_weights() -> None:
    model = build_graph_model(32).train()
    convert_graph_to_fp8(model, lambda _: DoubledLinear())
    model.features(torch.arange(16)[None]).sum().backward()
    assert all(p.grad is not None for name, p in model.named_parameters() if "mlp" in name)
