"""Element-wise parts of models, written with few passes over memory: on a CPU their time is that of the memory.

Each is what its definition says, forward and backward, in fp32 inside whatever the autocast; a test compares both with
the plain formula. torch.compile sees through them. None hides a matrix product.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

EPSILON = 1e-6
"""Added to the mean square: a row of zeros stays one."""


class Norm(torch.autograd.Function):
    """x / sqrt(mean(x^2) + epsilon) x gain, rows being the last dimension and the gain one number for each of the rows
    that the second to last dimension counts."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, gain: Tensor | None) -> Tensor:
        wide = x.float()
        inverse = (torch.linalg.vector_norm(wide, dim=-1, keepdim=True).square() / x.size(-1) + EPSILON).rsqrt()
        ctx.save_for_backward(x, inverse, gain)
        return (wide * (inverse if gain is None else inverse * gain[:, None])).to(x.dtype)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor | None]:
        x, inverse, gain = ctx.saved_tensors
        wide, g = x.float(), gradient.float()
        along = (g * wide).sum(-1, keepdim=True) * inverse  # [..., 1]: gradient times normalised row
        of_gain = None if gain is None else along.flatten(0, -3).sum(0).squeeze(-1).to(gain.dtype)
        scale = inverse if gain is None else inverse * gain[:, None]
        of_x = (g * scale).addcmul_(wide, scale * inverse * along / x.size(-1), value=-1)
        return of_x.to(x.dtype), of_gain


def norm(x: Tensor, gain: Tensor | None = None) -> Tensor:
    """RMSNorm over the last dimension (arXiv 1910.07467, eq. 4), without parameters, or with one gain per head `[H]`
    for `x [B, T, H, D]`. The gain is free: its gradient falls out of the norm's own."""
    return Norm.apply(x, gain)


class Rotation(torch.autograd.Function):
    """Pairs (i, i + D/2) turned by an angle; the gradient is turned back."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, cosine: Tensor, sine: Tensor) -> Tensor:
        ctx.save_for_backward(cosine, sine)
        return turned(x, cosine, sine, 1)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None]:
        cosine, sine = ctx.saved_tensors
        return turned(gradient, cosine, sine, -1), None, None


def turned(x: Tensor, cosine: Tensor, sine: Tensor, direction: int) -> Tensor:
    first, second = x.float().chunk(2, dim=-1)
    result = x * cosine
    left, right = result.chunk(2, dim=-1)
    left.addcmul_(second, sine, value=-direction)
    right.addcmul_(first, sine, value=direction)
    return result.to(x.dtype)


def rotate(x: Tensor, cosine: Tensor, sine: Tensor) -> Tensor:
    """Turn each pair (i, i + D/2) of `x [B, T, H, D]` by its position's angle (RoFormer, arXiv 2104.09864, eq. 34).

    The tables are fp32: `cosine [T, 1, D]`, each angle's twice, and `sine [T, 1, D/2]`.
    """
    return Rotation.apply(x, cosine, sine)


class SquaredReLU(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        positive = x.relu()
        ctx.save_for_backward(positive)
        return positive * positive

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        (positive,) = ctx.saved_tensors
        return (gradient * positive).mul_(2)


def squared_relu(x: Tensor) -> Tensor:
    """max(x, 0)^2 (Primer, arXiv 2109.08668, section 4.2)."""
    return SquaredReLU.apply(x)


class Cap(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, cap: float) -> Tensor:
        capped = x.float().sigmoid().mul_(2 * cap).sub_(cap)
        ctx.cap, ctx.dtype = cap, x.dtype
        ctx.save_for_backward(capped)
        return capped

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        (capped,) = ctx.saved_tensors
        # cap / 2 x (1 - tanh^2), from the result
        slope = torch.addcmul(gradient.new_full((), ctx.cap / 2), capped, capped, value=-1 / (2 * ctx.cap))
        return slope.mul_(gradient).to(ctx.dtype), None


def capped(x: Tensor, cap: float) -> Tensor:
    """cap x tanh(x / 2), fp32, as a sigmoid, which takes a CPU a seventh of a tanh's time.

    The soft cap on logits, cap x tanh(y / cap) (Gemma 2, arXiv 2408.00118, section 2), is this of 2 y / cap: multiply
    before the head, where it is a small tensor.
    """
    return Cap.apply(x, cap)
