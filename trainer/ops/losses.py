"""The sum of a loss over many positions, computed in chunks so that not all logits `[N, V]` exist at once.

In training, the gradient of each chunk is computed right after its loss. Nothing is computed twice, and only the
chunk's part of the gradients of the features and of the head is kept (Liger Kernel's fused linear cross-entropy,
arXiv 2410.10989, section 3.2; here for any head). The sums equal those of plain cross-entropy, in another order.

torch's `F.linear_cross_entropy` is faster with the same chunks, but computes the cross-entropy of a linear head and
nothing else: no soft cap, no L2Wrap, no traced head. So it is not used (`benchmarks/results/training-speed.md`).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

CHUNK_LOGITS = {"cpu": (2**22, 2**22), "cuda": (2**27, 2**28)}
"""Smallest and largest limit of a chunk's logits; in between it is a quarter of the micro-batch's. 16 MB of fp32 fit a
CPU's last cache. On a GPU the micro-batch is chosen by memory, and larger chunks follow it: each reads and writes the
head, which half a gigabyte of logits makes up for."""
CHUNKS = 4  # of a micro-batch, between these limits
MIN_CHUNK_POSITIONS = 256
"""For large vocabularies: each chunk adds to the whole gradient of the head, which for fewer positions takes longer
than their logits (measured: benchmarks/results/training-speed.md)."""

ChunkLoss = Callable[..., Tensor]
"""Takes features `[1, N, D]`, targets `[N]`, a reduction and the head's matrices that are cast; returns nats."""


class ChunkedLossFunction(torch.autograd.Function):
    """The sum of the losses of all chunks. The forward pass also computes the gradients.

    `casts`: by index, the parameters that `loss_function` takes in another type. They are cast once for all chunks, and
    the gradients of chunks are summed in the parameter's own type.
    """

    @staticmethod
    def forward(
        ctx: Any,
        loss_function: ChunkLoss,
        positions: int,
        features: Tensor,
        targets: Tensor,
        casts: Mapping[int, torch.dtype],
        *parameters: nn.Parameter,
    ) -> Tensor:
        cast = {index: parameters[index].detach().to(dtype).requires_grad_() for index, dtype in casts.items()}
        read = [cast.get(index, parameter) for index, parameter in enumerate(parameters)]
        total = torch.zeros((), device=features.device)
        feature_gradient = torch.empty_like(features)
        parameter_gradients: list[Tensor | None] = [None] * len(parameters)
        start = 0
        for part, y in iterate_chunks(features, targets, positions):
            x = part.detach().requires_grad_()
            with torch.enable_grad():
                loss = loss_function(x, y, "sum", *cast.values())
            # Most parameters do not belong to the head: their gradient is None.
            gradient, *others = torch.autograd.grad(loss, (x, *read), allow_unused=True)
            total += loss.detach()
            feature_gradient[start : start + len(y)] = gradient[0]
            start += len(y)
            parameter_gradients = [
                add_gradients(*each) for each in zip(parameter_gradients, others, parameters, strict=True)
            ]
        ctx.gradients = (feature_gradient, *parameter_gradients)
        return total

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, scale: Tensor) -> tuple[Tensor | None, ...]:
        # With a dimension the scale stays in fp32; in bf16 all gradients would be too long or short, by up to 0.4 %.
        feature_gradient, *others = (None if g is None else g.mul_(scale[None]) for g in ctx.gradients)
        del ctx.gradients
        return None, None, feature_gradient, None, None, *others


def add_gradients(total: Tensor | None, other: Tensor | None, parameter: Tensor) -> Tensor | None:
    """Return the sum in the parameter's type, in place if both exist."""
    if other is None:
        return total
    return other.to(parameter.dtype) if total is None else total.add_(other)


def iterate_chunks(features: Tensor, targets: Tensor, positions: int) -> Iterator[tuple[Tensor, Tensor]]:
    """Split features `[N, D]` and targets `[N]` into parts `[1, positions, D]` and `[positions]`."""
    for start in range(0, len(targets), positions):
        yield features[None, start : start + positions], targets[start : start + positions]


def limit_chunk_positions(device: str, vocabulary_size: int, positions: int) -> int:
    """Return how many of a micro-batch's positions a chunk has at most."""
    smallest, largest = CHUNK_LOGITS[device]
    logits = min(max(positions * vocabulary_size // CHUNKS, smallest), largest)
    return max(MIN_CHUNK_POSITIONS, logits // vocabulary_size)


def choose_chunk_positions(number: int, limit: int) -> int:
    """Return the largest divisor of `number` between half of `limit` and `limit`; `limit` if there is none."""
    limit = max(1, min(number, limit))
    return next((d for d in range(limit, limit // 2, -1) if number % d == 0), limit)


def count_chunks(number: int, device: str, vocabulary_size: int) -> int:
    """Return in how many chunks the logits of a number of positions are computed."""
    return math.ceil(number / choose_chunk_positions(number, limit_chunk_positions(device, vocabulary_size, number)))
