"""AdamW (arXiv 1711.05101, algorithm 2) in operations that every machine rounds alike.

Replicas of a stage each make the update by themselves and must stay equal to the last bit, whatever they run on. IEEE
754 pins the result of one addition, product, division or square root, but not of kernels that do several at once and
may or may not round in between (torch's own `addcmul_`, its fused AdamW, division by a number on a GPU). So here each
operation is one. On a CPU the price is next to nothing: they pass over pieces that stay in the cache.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

PIECE = 2**16
"""Numbers that are worked on at a time on a CPU."""


class AdamW:
    """Momenta of named parameters. `decayed` are the names whose weights decay."""

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
        """Make update `number`, counted from 1, at `factor` times the learning rate. Gradients are in the parameters'
        order, taken times `scale`, and not changed."""
        for (name, weight), gradient in zip(self.parameters.items(), gradients, strict=True):
            rows = (weight, gradient, self.averages[name], self.squares[name])
            size = PIECE if weight.device.type == "cpu" else max(1, weight.numel())
            for piece in zip(*(tensor.view(-1).split(size) for tensor in rows), strict=True):
                self.update(*piece, scale, rate=self.learning_rate * factor, number=number, decays=name in self.decayed)

    def update(
        self,
        weight: Tensor,
        gradient: Tensor,
        average: Tensor,
        square: Tensor,
        scale: float,
        *,
        rate: float,
        number: int,
        decays: bool,
    ) -> None:
        slow, slower = self.betas
        gradient = gradient * scale
        average.mul_(slow).add_(gradient * (1 - slow))
        square.mul_(slower).add_((gradient * gradient).mul_(1 - slower))
        size = root(square * (1 / (1 - slower**number))).add_(self.epsilon)
        move = (average * (1 / (1 - slow**number))).div_(size).mul_(rate)
        if decays:
            weight.mul_(1 - rate * self.weight_decay)
        weight.sub_(move)


def root(x: Tensor) -> Tensor:
    """Return the square root as IEEE 754 rounds it, which torch's own on a CPU is not always (MKL's, an ulp off).

    In fp64 an ulp's error is harmless: a root of an fp32 number is never so near the middle of two.
    """
    return x.double().sqrt_().float()
