"""Training on rows in chunks: gradients equal those of one pass, or stop at the start of a chunk."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from tests.support.interrupted_runs import check_resume
from tests.support.tiny import TINY_RWKV5
from trainer.models import rwkv5
from trainer.training import chunked_bptt
from trainer.training.objective import Objective

V = 40


def build_random_model() -> rwkv5.Model:
    torch.manual_seed(0)
    model = rwkv5.Model(rwkv5.Config(V, 100, depth=2, width=64))
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))
    return model.double()


def compute_gradients(model: rwkv5.Model, rows: Tensor, **settings: Any) -> tuple[Tensor, list[Tensor]]:
    objective = Objective(model, **settings)
    loss = objective(rows[:, :-1], rows[:, 1:])
    return loss.detach(), list(torch.autograd.grad(loss / 7, list(model.parameters())))


@pytest.mark.parametrize(("chunk", "fan"), [(8, 16), (8, 2), (30, 16), (100, 16)])
def test_through_gradients_equal_whole_row(chunk: int, fan: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chunked_bptt, "FAN_OUT", fan)
    model, rows = build_random_model(), torch.randint(0, V, (2, 101))
    torch.testing.assert_close(
        compute_gradients(model, rows, chunk=chunk, full_gradients=True),
        compute_gradients(model, rows),
        rtol=1e-6,
        atol=1e-6,
    )


def test_truncated_gradients_stop_at_chunk_start() -> None:
    model, rows = build_random_model(), torch.randint(0, V, (1, 65))
    loss, gradients = compute_gradients(model, rows, chunk=32)
    whole, whole_gradients = compute_gradients(model, rows)
    torch.testing.assert_close(loss, whole)  # the state is passed on nevertheless
    # Computed by hand: the second half starts from a detached state.
    objective = Objective(model)
    features, state = model.advance(rows[:, :32])
    given = chunked_bptt.map_tensors(Tensor.detach, state)
    both = objective.compute_loss(features, rows[:, 1:33]) + objective.compute_loss(
        model.advance(rows[:, 32:64], given)[0], rows[:, 33:]
    )
    expected = torch.autograd.grad(both / 7, list(model.parameters()))
    torch.testing.assert_close(gradients, list(expected))
    assert any((a - b).abs().max() > 1e-4 for a, b in zip(gradients, whole_gradients, strict=True))


@pytest.mark.parametrize("each", [True, False])
@torch.no_grad()
def test_evaluation_in_chunks_equals_whole_row(each: bool) -> None:
    model, rows = build_random_model(), torch.randint(0, V, (3, 71))
    seen = [Objective(model, chunk=chunk)(rows[:, :-1], rows[:, 1:], each) for chunk in (16, 0)]
    torch.testing.assert_close(*seen)


def measure_saved_bytes(length: int, through: bool) -> int:
    """Return the peak of the bytes that are saved for backward passes."""
    model, rows = build_random_model().float(), torch.randint(0, V, (1, length + 1))
    objective, alive, most = Objective(model, chunk=32, full_gradients=through), 0, 0

    class SavedTensor:
        def __init__(self, tensor: Tensor) -> None:
            nonlocal alive, most
            self.tensor = tensor
            alive += tensor.nbytes
            most = max(most, alive)

        def __del__(self) -> None:
            nonlocal alive
            alive -= self.tensor.nbytes

    with torch.autograd.graph.saved_tensors_hooks(SavedTensor, lambda kept: kept.tensor):
        objective(rows[:, :-1], rows[:, 1:])
    return most


@pytest.mark.parametrize("through", [False, True])
def test_saved_memory_does_not_grow_with_row(through: bool) -> None:
    assert measure_saved_bytes(1024, through) <= 1.05 * measure_saved_bytes(128, through)


def test_stored_state_does_not_keep_chunk_alive(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tensors of the state are views of a whole chunk, which is much larger."""
    learn, seen = chunked_bptt.ChunkedRows.train_chunk, []

    def record_sizes(row: chunked_bptt.ChunkedRows, number: int, state: Any, later: Any) -> Any:
        seen.extend((each.untyped_storage().nbytes(), each.nbytes) for each in chunked_bptt.collect_tensors(state))
        return learn(row, number, state, later)

    monkeypatch.setattr(chunked_bptt.ChunkedRows, "train_chunk", record_sizes)
    compute_gradients(build_random_model(), torch.randint(0, V, (1, 81)), chunk=8, full_gradients=True)
    assert seen
    assert all(stored == own for stored, own in seen)


@pytest.mark.slow
@pytest.mark.parametrize("gradients", ["truncated", "through"])
def test_run_in_chunks_trains_and_resumes_exactly(gradients: str, dataset_folder: Path, tmp_path: Path) -> None:
    flags = ("--train.chunk-gradients", gradients, "--dataset", dataset_folder, "--budget", "4steps")
    check_resume(tmp_path, *flags, tiny=TINY_RWKV5, stop_after=2)
    resolved = json.loads((tmp_path / "whole" / "run.json").read_text())["config"]["resolved"]
    assert (resolved["chunk"], resolved["chunk_gradients"]) == (8, gradients)


def test_chunks_of_a_model_without_a_state_are_refused(train: Callable[..., int], tmp_path: Path) -> None:
    assert train(tmp_path, "--budget", "1steps", "--train.chunk", "16") == 2


def test_l2wrap_changes_gradient_not_loss() -> None:
    model, rows = build_random_model(), torch.randint(0, V, (2, 31))
    inputs, targets = rows[:, :-1], rows[:, 1:].clone()
    targets[:, :5] = -100
    plain, wrapped = Objective(model), Objective(model, l2wrap=0.01)
    losses = [objective(inputs, targets) for objective in (plain, wrapped)]
    torch.testing.assert_close(losses[0], losses[1])
    logits = model(inputs).flatten(0, 1)
    pull = 0.01 * (logits.max(-1).values.square() / 2)[targets.flatten() != -100].sum()
    parameters = list(model.parameters())
    expected = torch.autograd.grad(plain(inputs, targets) + pull, parameters)
    torch.testing.assert_close(list(torch.autograd.grad(losses[1], parameters)), list(expected))
