"""The sum of a loss over many positions, computed in chunks so that not all logits `[N, V]` exist at once.

In training, the gradient of each chunk is computed right after its loss. Nothing is computed twice, and only the
chunk's part of the gradients of the features and of the head is kept (Liger Kernel's fused linear cross-entropy,
arXiv 2410.10989, section 3.2; here for any head). The sums equal those of plain cross-entropy, in another order.

torch's `F.linear_cross_entropy` is faster with the same chunks, but computes the cross-entropy of a linear head and
nothing else: no soft cap, no L2Wrap, no traced head. So it is not used (`benchmarks/results/loss-cpu.md`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

CHUNK_LOGITS = {"cpu": 2**22, "cuda": 2**27}
"""Logits of a chunk. 16 MB of fp32 fit a CPU's last cache; half a gigabyte is a product large enough for a GPU."""
MIN_CHUNK_POSITIONS = 256
"""For large vocabularies: each chunk adds to the whole gradient of the head, which for fewer positions takes longer
than their logits (measured: benchmarks/results/loss-cpu.md)."""

ChunkLoss = Callable[[Tensor, Tensor, str], Tensor]
"""Takes features `[1, N, D]`, targets `[N]` and a reduction; returns nats."""


class ChunkedLossFunction(torch.autograd.Function):
    """The sum of the losses of all chunks. The forward pass also computes the gradients."""

    @staticmethod
    def forward(
        ctx: Any, loss_function: ChunkLoss, positions: int, features: Tensor, targets: Tensor, *parameters: nn.Parameter
    ) -> Tensor:
        total = torch.zeros((), device=features.device)
        feature_gradient = torch.empty_like(features)
        parameter_gradients: list[Tensor | None] = [None] * len(parameters)
        start = 0
        for part, y in iterate_chunks(features, targets, positions):
            x = part.detach().requires_grad_()
            with torch.enable_grad():
                loss = loss_function(x, y, "sum")
            # Most parameters do not belong to the head: their gradient is None.
            gradient, *others = torch.autograd.grad(loss, (x, *parameters), allow_unused=True)
            total += loss.detach()
            feature_gradient[start : start + len(y)] = gradient[0]
            start += len(y)
            parameter_gradients = [add_gradients(*pair) for pair in zip(parameter_gradients, others, strict=True)]
        ctx.gradients = (feature_gradient, *parameter_gradients)
        return total

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, scale: Tensor) -> tuple[Tensor | None, ...]:
        feature_gradient, *others = (None if g is None else g.mul_(scale.to(g.dtype)) for g in ctx.gradients)
        del ctx.gradients
        return None, None, feature_gradient, None, *others


def add_gradients(total: Tensor | None, other: Tensor | None) -> Tensor | None:
    """Return the sum, in place if both exist."""
    if total is None or other is None:
        return other if total is None else total
    return total.add_(other)


def iterate_chunks(features: Tensor, targets: Tensor, positions: int) -> Iterator[tuple[Tensor, Tensor]]:
    """Split features `[N, D]` and targets `[N]` into parts `[1, positions, D]` and `[positions]`."""
    for start in range(0, len(targets), positions):
        yield features[None, start : start + positions], targets[start : start + positions]


def max_chunk_positions(device: str, vocabulary_size: int) -> int:
    return max(MIN_CHUNK_POSITIONS, CHUNK_LOGITS[device] // vocabulary_size)


def choose_chunk_positions(number: int, limit: int) -> int:
    """Return the largest divisor of `number` between half of `limit` and `limit`; `limit` if there is none."""
    limit = max(1, min(number, limit))
    return next((d for d in range(limit, limit // 2, -1) if number % d == 0), limit)
