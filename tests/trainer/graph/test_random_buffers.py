"""Buffers with random values that a model does not save: a checkpoint of its graph holds them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor

from benchmarks.cheats.base import WIDTH, Config, Model, T, V, vary
from trainer.checkpoint.graph_weights import load_graph_model
from trainer.errors import UnusableCheckpointError
from trainer.graph.files import TracedArchitecture
from trainer.graph.model import build_model
from trainer.graph.reading import parse_files
from trainer.graph.trace import trace_architecture

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
