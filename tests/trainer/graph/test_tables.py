"""Tensors of a graph that are stored or computed in another way than its Python says.

Embeddings that are only looked up are kept in bf16, random buffers in a checkpoint, and matrix products are in fp8
(`tests/cuda` compiles them for a GPU).
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from safetensors.torch import save_file
from torch import Tensor, nn

from benchmarks.cheats.base import WIDTH, Config, Model, T, V, vary
from trainer.checkpoint.graph_weights import load_graph_model
from trainer.errors import UnusableCheckpointError
from trainer.graph.files import TracedArchitecture
from trainer.graph.fp8 import convert_graph_to_fp8
from trainer.graph.model import GraphModel, build_model
from trainer.graph.reading import parse_files
from trainer.graph.trace import trace_architecture
from trainer.models import load_architecture
from trainer.training.precision import convert_tables

VOCABULARY, LENGTH = 96, 32


def build(arch: str = "gpt", **fields: Any) -> tuple[GraphModel, Any]:
    """Return a traced model and its recipe, without parameters that are zero at the start."""
    module = load_architecture(arch)
    config = module.Config.sized(2, VOCABULARY, LENGTH)
    config = replace(config, **fields)
    torch.manual_seed(0)
    model = build_model(trace_architecture(module, config))
    for parameter in model.parameters():
        parameter.data += 0.05 * torch.randn_like(parameter)
    return model, module.recipe(config)


def compute(model: GraphModel, tokens: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
    with torch.autocast("cpu", torch.bfloat16):
        logits = model(tokens)
    (logits * torch.linspace(-1, 1, logits.numel()).view_as(logits)).sum().backward()
    return logits, {name: p.grad for name, p in model.named_parameters() if p.grad is not None}


@pytest.mark.parametrize(
    ("arch", "fields", "optimizer", "names"),
    [
        ("gpt", {}, "adamw", ["embedding.weight", "blocks.1.attention.value_embedding.weight"]),
        ("gpt", {"tied_head": True}, "adamw", ["blocks.1.attention.value_embedding.weight"]),
        ("gpt", {}, "adamw8bit", ["blocks.1.attention.value_embedding.weight"]),
        ("rwkv5", {}, "adamw", []),
    ],
)
def test_only_tables_that_are_looked_up_and_cast_are_in_bf16(
    arch: str, fields: dict[str, Any], optimizer: Any, names: list[str]
) -> None:
    model, recipe = build(arch, **fields)
    changed = [replace(g, optimizer=optimizer) if g.name == "embedding" else g for g in recipe.groups]
    assert convert_tables(model, replace(recipe, groups=tuple(changed))) == len(names)
    assert [name for name, parameter in model.named_parameters() if parameter.dtype == torch.bfloat16] == names


def test_forward_pass_is_the_same_and_gradients_are_rounded_once() -> None:
    model, recipe = build()
    with torch.no_grad():
        for parameter in model.parameters():  # no weight is lost in bf16
            parameter.copy_(parameter.bfloat16())
    tokens = torch.randint(0, 8, (64, LENGTH), generator=torch.Generator().manual_seed(1))  # of a few, often
    wanted, gradients = compute(model, tokens)
    model.zero_grad()
    convert_tables(model, recipe)
    found, narrow = compute(model, tokens)
    assert torch.equal(found, wanted)
    assert narrow.keys() == gradients.keys()
    for name, gradient in gradients.items():
        assert torch.equal(narrow[name], gradient.to(narrow[name].dtype)), name
    assert model.eval()(tokens).dtype == torch.float32, "it also computes in fp32"


WEIGHTS = "model.safetensors"


def construct(self: Any, config: Config) -> None:
    """Fixed random features, which are filled through a view, and a table of positions."""
    Model.__init__(self, config)
    self.register_buffer("projection", torch.empty(WIDTH, WIDTH), persistent=False)
    self.projection.view(-1).normal_()
    self.register_buffer("positions", torch.arange(T)[:, None] / T, persistent=False)


def features(self: Any, tokens: Tensor) -> Tensor:
    return (Model.features(self, tokens) + self.positions) @ self.projection


@pytest.fixture(scope="module")
def traced() -> TracedArchitecture:
    return parse_files(trace_architecture(vary(__init__=construct, features=features), Config(V, T)).to_files())


def test_saved_model_with_random_features_computes_the_same_logits(traced: TracedArchitecture, tmp_path: Path) -> None:
    torch.manual_seed(1)
    model = build_model(traced)
    tokens = torch.randint(V, (2, T))
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    model(tokens).square().mean().backward()
    optimizer.step()
    assert "projection" in model.state_dict()
    assert "positions" not in model.state_dict()
    save_file(model.state_dict(), tmp_path / WEIGHTS)
    torch.manual_seed(2)
    loaded = load_graph_model(traced, tmp_path)
    assert torch.equal(loaded.eval()(tokens), model.eval()(tokens))


def test_checkpoint_without_random_features_is_refused(traced: TracedArchitecture, tmp_path: Path) -> None:
    weights = {name: tensor for name, tensor in build_model(traced).state_dict().items() if name != "projection"}
    save_file(weights, tmp_path / WEIGHTS)
    with pytest.raises(UnusableCheckpointError, match="has no projection"):
        load_graph_model(traced, tmp_path)


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
    assert convert_graph_to_fp8(build_graph_model(40), lambda _: DoubledLinear()) == 0, "no multiples of 16"
    assert not any("fp8" in name for name in model.state_dict())
    model.train().features(tokens).sum().backward()
    assert all(p.grad is not None for name, p in model.named_parameters() if "mlp" in name), "of the stored weights"
