"""The chunked loss equals cross-entropy and its gradients, and never holds all logits."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from trainer.models.base import LanguageModel
from trainer.ops import losses
from trainer.ops.losses import choose_chunk_positions, limit_chunk_positions
from trainer.training.objective import Objective

VOCABULARY, WIDTH = 97, 8


class Tied(LanguageModel):
    """A model with a tied head, capped logits and a learned scale of the logits."""

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


def set_chunk_rows(rows: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(losses.CHUNK_LOGITS, "cpu", (rows * VOCABULARY,) * 2)
    monkeypatch.setattr(losses, "MIN_CHUNK_POSITIONS", 1)


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
    each = F.cross_entropy(model(inputs).flatten(0, 1), targets.flatten(), reduction="none")
    (each.sum() / 120).backward()
    wanted = gradients(model)
    set_chunk_rows(rows, monkeypatch)
    ours = Objective(model)(inputs, targets)
    (ours / 120).backward()
    assert ours.dtype == torch.float32
    torch.testing.assert_close(ours, each.sum())
    found = gradients(model)
    assert found["unused.weight"] is None
    for name, gradient in wanted.items():
        torch.testing.assert_close(found[name], gradient, msg=name)
    with torch.no_grad():
        torch.testing.assert_close(Objective(model)(inputs, targets, per_position=True), each.detach())


def test_scale_of_loss_is_not_rounded_to_features_of_16_bits() -> None:
    """1 / 150, over the targets of a step with documents, is no number of bf16: all gradients would be 0.2 % longer."""
    torch.manual_seed(0)
    features = torch.randn(8, WIDTH).bfloat16().requires_grad_()
    head = nn.Parameter(torch.randn(VOCABULARY, WIDTH))

    def compute_loss(x: Tensor, y: Tensor, reduction: str) -> Tensor:
        return F.cross_entropy(F.linear(x.float(), head)[0], y, reduction=reduction)

    gradients = []
    for scale in (1.0, 1 / 150):
        loss = losses.ChunkedLossFunction.apply(compute_loss, 4, features, torch.arange(8), {}, head)
        gradients.append(torch.autograd.grad(loss * scale, features)[0].float())
    whole, scaled = gradients
    assert (scaled * 150 / whole).mean().item() == pytest.approx(1, abs=5e-4)


class LargestTensor(TorchDispatchMode):
    """Records the size of the largest tensor that an operator returns."""

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
    set_chunk_rows(10, monkeypatch)
    with LargestTensor() as largest:
        Objective(model)(inputs, targets).backward()
    assert largest.numbers <= 10 * VOCABULARY
    with LargestTensor() as plain:
        F.cross_entropy(model(inputs).flatten(0, 1), targets.flatten()).backward()
    assert plain.numbers == inputs.numel() * VOCABULARY


def test_chunk_positions_have_limits_and_divide_evenly_if_possible() -> None:
    assert limit_chunk_positions("cpu", 8192, 10**6) == 512
    # Each chunk adds to the whole gradient of the head, so chunks of a large vocabulary have a least size.
    assert limit_chunk_positions("cpu", 50304, 10**6) == limit_chunk_positions("cpu", 2**20, 1) == 256
    # On a GPU a chunk is a quarter of the micro-batch within limits.
    rows = {rows: limit_chunk_positions("cuda", 2**15, rows * 2048) for rows in (1, 8, 12, 16, 64)}
    assert rows == {1: 4096, 8: 4096, 12: 6144, 16: 8192, 64: 8192}
    sizes = {(2048, 512): 512, (2048, 600): 512, (90, 50): 45, (10, 1000): 10, (10, 0): 1}
    sizes[97, 50] = 50  # a prime: the last chunk is shorter
    assert {pair: choose_chunk_positions(*pair) for pair in sizes} == sizes
