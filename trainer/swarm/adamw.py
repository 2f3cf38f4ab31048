"""AdamW (arXiv 1711.05101, algorithm 2) with operations that every machine rounds equally.

Replicas of a stage compute the update independently and must stay equal to the last bit on any hardware. IEEE 754
determines the result of one addition, product, division or square root, but not of kernels that combine several and may
or may not round in between (torch's `addcmul_`, its fused AdamW, division by a scalar on a GPU). So each operation is
separate here. On a CPU the cost is small, because the operations work on chunks that stay in the cache.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

CHUNK = 2**16  # Numbers per chunk on a CPU


class AdamW:
    """`decayed` are the names of parameters with weight decay."""

    def __init__(
        self,
        parameters: Mapping[str, Tensor],
        decayed: frozenset[str],
        learning_rate: float,
        weight_decay: float,
        betas: tuple[float, float],
        epsilon: float,
    ) -> None:
        self.parameters, self.decayed = dict(parameters), decayed
        self.learning_rate, self.weight_decay, self.betas, self.epsilon = learning_rate, weight_decay, betas, epsilon
        self.averages = {name: torch.zeros_like(p, requires_grad=False) for name, p in self.parameters.items()}
        self.squares = {name: torch.zeros_like(p, requires_grad=False) for name, p in self.parameters.items()}

    @torch.no_grad()
    def step(self, gradients: Sequence[Tensor], factor: float, number: int, scale: float = 1.0) -> None:
        """Make update `number`, counted from 1, with `factor` times the learning rate.

        Gradients are in the order of the parameters, multiplied by `scale`, and not changed."""
        for (name, weight), gradient in zip(self.parameters.items(), gradients, strict=True):
            rows = (weight, gradient, self.averages[name], self.squares[name])
            size = CHUNK if weight.device.type == "cpu" else max(1, weight.numel())
            decay = self.weight_decay if name in self.decayed else 0.0
            for w, g, average, square in zip(*(tensor.view(-1).split(size) for tensor in rows), strict=True):
                self.update(w, g * scale, average, square, self.learning_rate * factor, number, decay)

    def update(
        self, weight: Tensor, gradient: Tensor, average: Tensor, square: Tensor, rate: float, number: int, decay: float
    ) -> None:
        slow, slower = self.betas
        average.mul_(slow).add_(gradient * (1 - slow))
        square.mul_(slower).add_((gradient * gradient).mul_(1 - slower))
        size = compute_root(square * (1 / (1 - slower**number))).add_(self.epsilon)
        move = (average * (1 / (1 - slow**number))).div_(size).mul_(rate)
        if decay:
            weight.mul_(1 - rate * decay)
        weight.sub_(move)


def compute_root(x: Tensor) -> Tensor:
    """Return the correctly rounded square root. torch's on a CPU (from MKL) may be off by one ulp.

    In fp64 that error is harmless: the root of an fp32 number is never so close to the midpoint of two fp32 numbers.
    """
    return x.double().sqrt_().float()
