"""The loss in chunks is cross-entropy, with all its gradients, and never holds all logits."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from trainer.models.base import LanguageModel
from trainer.ops import losses
from trainer.ops.losses import MIN_CHUNK_POSITIONS, choose_chunk_positions, max_chunk_positions
from trainer.training.objective import Objective

VOCABULARY, WIDTH = 97, 8


class Tied(LanguageModel):
    """Embedding and head are one matrix; the logits are capped, and scaled by a weight of their own."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(VOCABULARY, WIDTH)
        self.middle = nn.Linear(WIDTH, WIDTH)
        self.unused = nn.Linear(2, 2)
        self.scale = nn.Parameter(torch.tensor([1.5]))

    def features(self, tokens: Tensor) -> Tensor:
        return torch.tanh(self.middle(self.embedding(tokens)))

    def logits(self, features: Tensor) -> Tensor:
        return 15 * torch.tanh(self.scale * F.linear(features, self.embedding.weight) / 15)


@pytest.fixture
def text() -> tuple[Tensor, Tensor]:
    torch.manual_seed(0)
    tokens = torch.randint(0, VOCABULARY, (4, 31))
    return tokens[:, :-1], tokens[:, 1:]


@contextmanager
def chunks_of(rows: int, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setitem(losses.CHUNK_LOGITS, "cpu", rows * VOCABULARY)
    monkeypatch.setattr(losses, "MIN_CHUNK_POSITIONS", 1)
    yield


def gradients(model: nn.Module) -> dict[str, Tensor | None]:
    found = {name: parameter.grad for name, parameter in model.named_parameters()}
    model.zero_grad(set_to_none=True)
    return found


@pytest.mark.parametrize("rows", [1, 7, 32, 120, 1000])
def test_objective_equals_cross_entropy_with_gradients(
    text: tuple[Tensor, Tensor], rows: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    inputs, targets = text
    model = Tied()
    plain = F.cross_entropy(model(inputs).flatten(0, 1), targets.flatten(), reduction="sum")
    (plain / 120).backward()
    wanted = gradients(model)
    with chunks_of(rows, monkeypatch):
        ours = Objective(model)(inputs, targets)
        (ours / 120).backward()
    assert ours.dtype == torch.float32
    torch.testing.assert_close(ours, plain)
    found = gradients(model)
    assert found["unused.weight"] is None
    for name, gradient in wanted.items():
        torch.testing.assert_close(found[name], gradient, msg=name)


def test_losses_of_micro_batches_add_up(text: tuple[Tensor, Tensor]) -> None:
    inputs, targets = text
    model = Tied()
    objective = Objective(model)
    objective(inputs, targets).backward()
    wanted = gradients(model)
    for part in (slice(0, 1), slice(1, 4)):
        objective(inputs[part], targets[part]).backward()
    for name, gradient in gradients(model).items():
        torch.testing.assert_close(gradient, wanted[name], msg=name)


def test_objective_each_returns_loss_per_position(text: tuple[Tensor, Tensor], monkeypatch: pytest.MonkeyPatch) -> None:
    inputs, targets = text
    model = Tied()
    with chunks_of(7, monkeypatch), torch.no_grad():
        each = Objective(model)(inputs, targets, per_position=True)
        total = Objective(model)(inputs, targets)
    torch.testing.assert_close(
        each, F.cross_entropy(model(inputs).flatten(0, 1), targets.flatten(), reduction="none").detach()
    )
    torch.testing.assert_close(total, each.sum())


def test_frozen_head_gets_no_gradient(text: tuple[Tensor, Tensor]) -> None:
    model = Tied()
    model.embedding.requires_grad_(False)
    Objective(model)(*text).backward()
    found = gradients(model)
    assert found["embedding.weight"] is None
    assert found["middle.weight"] is not None


class Largest(TorchDispatchMode):
    """Notes the largest tensor that any operator makes."""

    def __init__(self) -> None:
        super().__init__()
        self.numbers = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        made = [each for each in (out if isinstance(out, tuple) else (out,)) if isinstance(each, Tensor)]
        self.numbers = max([self.numbers, *(each.numel() for each in made)])
        return out


def test_objective_never_holds_all_logits(text: tuple[Tensor, Tensor], monkeypatch: pytest.MonkeyPatch) -> None:
    inputs, targets = text
    model = Tied()
    with chunks_of(10, monkeypatch), Largest() as largest:
        Objective(model)(inputs, targets).backward()
    assert largest.numbers <= 10 * VOCABULARY
    with Largest() as plain:
        F.cross_entropy(model(inputs).flatten(0, 1), targets.flatten()).backward()
    assert plain.numbers == inputs.numel() * VOCABULARY


def test_large_vocabulary_chunk_has_minimum_positions() -> None:
    """Each adds to the whole gradient of the head; there are still far fewer logits than positions times words."""
    assert max_chunk_positions("cpu", 8192) == 512
    assert max_chunk_positions("cpu", 50304) == max_chunk_positions("cpu", 2**20) == MIN_CHUNK_POSITIONS == 256
    assert max_chunk_positions("cuda", 50304) == 2668


def test_large_vocabulary_never_holds_all_logits() -> None:
    features, head = nn.Parameter(torch.zeros(1, 1024, 2)), nn.Linear(2, 40000, bias=False)
    targets = torch.zeros(1, 1024, dtype=torch.int64)
    objective = Objective(Given(features, head))
    with Largest() as largest:
        objective(targets, targets).backward()
    assert largest.numbers == MIN_CHUNK_POSITIONS * 40000


class Given(LanguageModel):
    """A model that is all head."""

    def __init__(self, given: nn.Parameter, head: nn.Linear) -> None:
        super().__init__()
        self.given, self.head = given, head

    def features(self, tokens: Tensor) -> Tensor:
        return self.given

    def logits(self, features: Tensor) -> Tensor:
        return self.head(features)


def test_chunks_divide_evenly_if_possible() -> None:
    assert choose_chunk_positions(2048, 512) == 512
    assert choose_chunk_positions(2048, 600) == 512
    assert choose_chunk_positions(90, 50) == 45
    assert choose_chunk_positions(97, 50) == 50  # a prime: the last chunk is shorter
    assert choose_chunk_positions(10, 1000) == 10
    assert choose_chunk_positions(10, 0) == 1
