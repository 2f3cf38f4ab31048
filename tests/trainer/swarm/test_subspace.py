"""Stages in a subspace: messages are smaller, and loss and gradients are those of the confined model."""

from __future__ import annotations

import inspect
from pathlib import Path

import pytest
import torch

from benchmarks.swarm.subspace import build_subspace_model, main
from tests.support.swarm_chain import build_tiny_config
from trainer.data.dataset import Dataset
from trainer.swarm.config import SwarmConfig
from trainer.swarm.data import Batches
from trainer.swarm.stage import build_model
from trainer.training.objective import Objective

RANK = 6


@pytest.fixture
def batches(dataset_folder: Path) -> Batches:
    dataset = Dataset.open(dataset_folder)
    base = build_tiny_config(dataset, "nanogpt")
    return Batches(dataset, build_tiny_config(dataset, "nanogpt", model=base.model | {"tied_head": False}))


def compute_loss(config: SwarmConfig, batches: Batches, boundaries: list[int]) -> tuple[float, dict[str, torch.Tensor]]:
    """Return the loss and the gradients of a model with random weights in the subspace."""
    model, rng = build_subspace_model(config, RANK, boundaries), torch.Generator().manual_seed(1)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn(parameter.shape, generator=rng), alpha=0.1)
    loss = Objective(model)(*batches.get_batch(0, 0))
    loss.backward()
    return float(loss.detach()), {name: p.grad for name, p in model.named_parameters() if p.grad is not None}


def test_boundaries_in_a_subspace_change_neither_loss_nor_gradients(batches: Batches) -> None:
    loss, gradients = compute_loss(batches.config, batches, [])
    split, split_gradients = compute_loss(batches.config, batches, [1, 2, 3])
    assert split == pytest.approx(loss, rel=1e-6)
    assert gradients.keys() == split_gradients.keys()
    for name, gradient in gradients.items():
        assert torch.allclose(split_gradients[name], gradient, rtol=1e-4, atol=1e-5), name


def test_message_has_the_rank_of_the_subspace(batches: Batches) -> None:
    model = build_subspace_model(batches.config, RANK, [])
    tokens, _ = batches.get_batch(0, 0)
    x = model.blocks[0](model.decode(model.embedding(tokens), tokens))[0]
    message = model.encode(x, tokens)
    assert message.shape == (*tokens.shape, RANK)
    assert torch.allclose(model.decode(message, tokens), x, atol=1e-6)


def test_full_rank_starts_as_the_whole_model(batches: Batches) -> None:
    tokens, _ = batches.get_batch(0, 0)
    whole, confined = (
        build_model(batches.config),
        build_subspace_model(batches.config, batches.config.model["width"], [2]),
    )
    assert torch.allclose(confined(tokens), whole(tokens), atol=1e-5)


@pytest.mark.slow
def test_subspace_benchmark_prints_a_line_for_each_rank(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = Path(inspect.__file__)
    arguments = ["--corpus", f"files:{text}", "--steps", "21", "--width", "64", "--ranks", "8"]
    assert main([*arguments, "--out", str(tmp_path / "out.json")]) == 0
    exact, confined = capsys.readouterr().out.splitlines()
    assert exact.startswith("width 64, seed 1, exact: ")
    assert confined.startswith("width 64, seed 1, rank 8: ")
