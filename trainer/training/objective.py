"""What is trained: the sum of a model's losses, computed without ever holding all of its logits `[B, T, V]`.

Positions pass the head in chunks. In training the gradient of a chunk is computed directly after its loss, so nothing
is computed twice, and only its part of the gradients of the features and of the head is kept
(the idea is Liger Kernel's fused linear cross-entropy, arXiv 2410.10989, section 3.2; here for any `logits`).
The sums are those of plain cross-entropy, in another order.

`F.linear_cross_entropy` of torch 2.13 was measured with its default options on two shared CPU cores, 2048 positions of
width 256, best of five forward and backward passes. With 8,192 tokens it takes 0.84 s and 228 MiB, this 0.77 s and
199 MiB. With 50,304 tokens it takes 4.7 s and 1,197 MiB, this 6.1 s and 264 MiB. It also knows no head but a matrix: no
soft cap, no L2Wrap. This one stays for its memory.

An architecture must compute the logits of each position independently and leave no trace in the model.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from trainer.data.loader import IGNORE_INDEX
from trainer.models.base import LanguageModel
from trainer.training.chunked_bptt import ChunkedBPTT, evaluate_in_chunks

CHUNK = {"cpu": 2**22, "cuda": 2**27}
"""Logits of a chunk. 16 MB of fp32 fit a CPU's last cache; half a gigabyte is a product large enough for a GPU."""
FEWEST = 256
"""Positions of a chunk, however large the vocabulary: each chunk adds to the whole gradient of the head, which with
fewer positions takes longer than their logits (measured: docs/benchmarks.md)."""

Nats = Callable[[Tensor, Tensor, str], Tensor]


class Objective(nn.Module):
    """Inputs and targets `[B, T]` in, nats out: their sum in fp32, or with `each` one for every position `[B x T]`.

    `features` and `nats` are the two parts that torch.compile may translate; the loop over chunks stays Python.
    With a `chunk`, longer rows pass the model in pieces of so many tokens, see `trainer.training.chunked_bptt`.
    """

    def __init__(self, model: LanguageModel, l2wrap: float = 0.0, chunk: int = 0, through: bool = False) -> None:
        super().__init__()
        self.model = model
        self.l2wrap = l2wrap
        self.chunk, self.through = chunk, through
        self.features: Callable[[Tensor], Tensor] = model.features
        self.nats: Nats = self.of_chunk
        self.vocabulary_size = 0

    def of_chunk(self, features: Tensor, targets: Tensor, reduction: str) -> Tensor:
        """Return the nats of features `[1, N, D]` and targets `[N]`."""
        logits = self.model.logits(features).flatten(0, 1).float()
        nats = F.cross_entropy(logits, targets, reduction=reduction)
        return nats + self.pull(logits, targets) if self.l2wrap and torch.is_grad_enabled() else nats

    def pull(self, logits: Tensor, targets: Tensor) -> Tensor:
        """Return zero, with the gradient of L2Wrap: `l2wrap` times each learned position's largest logit.

        It keeps logits from drifting upwards together, which the loss does not see (RWKV-LM's loss).
        """
        largest = logits.max(-1).values * (targets != IGNORE_INDEX)
        extra = self.l2wrap / 2 * largest.square().sum()
        return extra - extra.detach()

    def forward(self, inputs: Tensor, targets: Tensor, each: bool = False) -> Tensor:
        if not 0 < self.chunk < inputs.size(1):
            return self.loss_of(self.features(inputs), targets, each)
        if each or not torch.is_grad_enabled():
            return evaluate_in_chunks(self, inputs, targets, each)
        return ChunkedBPTT.apply(self, inputs, targets, *self.learning())

    def learning(self) -> list[nn.Parameter]:
        return [parameter for parameter in self.model.parameters() if parameter.requires_grad]

    def loss_of(self, features: Tensor, targets: Tensor, each: bool = False) -> Tensor:
        """Return what `forward` does, of features `[B, T, D]`."""
        features, targets = features.flatten(0, 1), targets.flatten()
        rows = self.rows(features)
        if each or not torch.is_grad_enabled():
            reduction = "none" if each else "sum"
            parts = [self.nats(x, y, reduction) for x, y in chunks(features, targets, rows)]
            return torch.cat(parts) if each else torch.stack(parts).sum()
        return Chunked.apply(self.nats, rows, features, targets, *self.learning())

    def rows(self, features: Tensor) -> int:
        """Return how many positions a chunk has: those that `CHUNK` allows, or a little fewer to divide evenly."""
        if not self.vocabulary_size:
            with torch.no_grad():
                self.vocabulary_size = self.model.logits(features[None, :1]).size(-1)
        return even(features.size(0), most(features.device.type, self.vocabulary_size))


class Chunked(torch.autograd.Function):
    """The sum over all chunks; its gradients are ready when it is."""

    @staticmethod
    def forward(
        ctx: Any, nats: Nats, rows: int, features: Tensor, targets: Tensor, *parameters: nn.Parameter
    ) -> Tensor:
        total = torch.zeros((), device=features.device)
        of_features = torch.empty_like(features)
        of_parameters: list[Tensor | None] = [None] * len(parameters)
        place = 0
        for part, y in chunks(features, targets, rows):
            x = part.detach().requires_grad_()
            with torch.enable_grad():
                loss = nats(x, y, "sum")
            # Most parameters are not the head's: theirs is None.
            found, *others = torch.autograd.grad(loss, (x, *parameters), allow_unused=True)
            total += loss.detach()
            of_features[place : place + len(y)] = found[0]
            place += len(y)
            of_parameters = [plus(before, other) for before, other in zip(of_parameters, others, strict=True)]
        ctx.gradients = (of_features, *of_parameters)
        return total

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, scale: Tensor) -> tuple[Tensor | None, ...]:
        of_features, *of_parameters = (None if g is None else g.mul_(scale.to(g.dtype)) for g in ctx.gradients)
        del ctx.gradients
        return None, None, of_features, None, *of_parameters


def plus(before: Tensor | None, other: Tensor | None) -> Tensor | None:
    """Add in place where there is something to add to."""
    if before is None or other is None:
        return other if before is None else before
    return before.add_(other)


def chunks(features: Tensor, targets: Tensor, rows: int) -> Iterator[tuple[Tensor, Tensor]]:
    """Cut features `[N, D]` and targets `[N]` into pieces `[1, rows, D]` and `[rows]`."""
    for start in range(0, len(targets), rows):
        yield features[None, start : start + rows], targets[start : start + rows]


def most(device: str, vocabulary_size: int) -> int:
    """Return the most positions of a chunk."""
    return max(FEWEST, CHUNK[device] // vocabulary_size)


def even(number: int, most: int) -> int:
    """Return the largest divisor between half of `most` and all of it; `most` if there is none."""
    most = max(1, min(number, most))
    return next((d for d in range(most, most // 2, -1) if number % d == 0), most)
