"""Element-wise parts of models with few passes over memory, which on a CPU limits their speed.

All compute in fp32, with or without autocast. A test compares forward and backward with the plain formula.
torch.compile traces through them. None contains a matrix product.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

# --- operators of exported graphs -------------------------------------------------------------------------------------
# While `torch.export` runs, `trainer.ops` calls these operators, so that a graph holds one call for each instead of a
# device's kernel. They have a shape and no implementation: a graph that is built calls the Python functions again.


LIBRARY = torch.library.Library("dailytrain", "DEF")


def is_exporting() -> bool:
    """Return whether a graph is being exported.

    `torch.compiler.is_exporting()` is also true while torch 2.11 compiles.
    """
    return bool(torch.compiler._is_exporting_flag)


def register(schema: str, shape: Callable[..., Tensor | tuple[Tensor, ...]]) -> None:
    """Define an operator of the namespace `dailytrain`. `shape` returns empty tensors like its results."""
    name = LIBRARY.define(schema)
    torch.library.register_fake(f"dailytrain::{name}", shape, lib=LIBRARY)


def like_first(first: Tensor, *_: object) -> Tensor:
    return torch.empty_like(first)


register("attention(Tensor query, Tensor key, Tensor value, int? window, Tensor? documents) -> Tensor", like_first)
register("norm(Tensor x, Tensor? gain) -> Tensor", like_first)
register("rotate(Tensor x, Tensor cosine, Tensor sine) -> Tensor", like_first)
register("squared_relu(Tensor x) -> Tensor", like_first)
register("softcap(Tensor x, float cap) -> Tensor", lambda x, _: torch.empty_like(x, dtype=torch.float32))
register("cast_for_autocast(Tensor x) -> Tensor", like_first)
register(
    "ngram_memory(Tensor tokens, Tensor table, int[] orders, int hashes, int? end_of_text) -> Tensor",
    lambda tokens, table, *_: table.new_empty((*tokens.shape, *table.shape[1:])),
)
register("balance_load(Tensor gates, Tensor bias, Tensor load) -> Tensor", like_first)
register(
    "recurrence(Tensor r, Tensor k, Tensor v, Tensor rate, Tensor bonus, Tensor state) -> (Tensor, Tensor)",
    lambda r, k, v, rate, bonus, state: (v.new_empty(v.shape), torch.empty_like(state)),
)


EPSILON = 1e-6  # added to the mean square, so that a row of zeros stays zero


AUTOCAST_DEVICES = ("cpu", "cuda")  # torch raises for a device without autocast, such as meta


def cast_for_autocast(x: Tensor) -> Tensor:
    """Return `x` in autocast's type if autocast is on: in 16 bits an embedding starts a residual stream of 16 bits.

    Cast the rows, not the table, so that their gradients are summed in fp32.
    """
    if is_exporting():
        return torch.ops.dailytrain.cast_for_autocast(x)
    kind = x.device.type
    if kind in AUTOCAST_DEVICES and torch.is_autocast_enabled(kind):
        return x.to(torch.get_autocast_dtype(kind))
    return x


def copy_if_compiling(result: Tensor) -> Tensor:
    """Return a function's result as a tensor of its own where it is compiled; compilers leave the copy out.

    torch 2.11 passes back zeros, without a message, from a compiled autograd.Function whose result was changed in place
    or is an alias, such as `x.to(x.dtype)`.
    """
    return result.clone() if torch.compiler.is_compiling() else result


class RMSNormFunction(torch.autograd.Function):
    """x / sqrt(mean(x^2) + epsilon) x gain over the last dimension, with one gain per index of the second to last."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, gain: Tensor | None) -> Tensor:
        wide = x.float()
        inverse = (torch.linalg.vector_norm(wide, dim=-1, keepdim=True).square() / x.size(-1) + EPSILON).rsqrt()
        ctx.save_for_backward(x, inverse, gain)
        return copy_if_compiling((wide * (inverse if gain is None else inverse * gain[:, None])).to(x.dtype))

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor | None]:
        x, inverse, gain = ctx.saved_tensors
        wide, g = x.float(), gradient.float()
        projection = (g * wide).sum(-1, keepdim=True) * inverse  # [..., 1]: gradient times normalized row
        gain_gradient = None if gain is None else projection.flatten(0, -3).sum(0).squeeze(-1).to(gain.dtype)
        scale = inverse if gain is None else inverse * gain[:, None]
        x_gradient = (g * scale).addcmul_(wide, scale * inverse * projection / x.size(-1), value=-1)
        return x_gradient.to(x.dtype), gain_gradient


def norm(x: Tensor, gain: Tensor | None = None) -> Tensor:
    """RMSNorm over the last dimension (arXiv 1910.07467, eq. 4), without parameters, or with one gain per head `[H]`
    for `x [B, T, H, D]`. The gain costs nothing extra: its gradient is a by-product of the norm's."""
    if is_exporting():
        return torch.ops.dailytrain.norm(x, gain)
    return RMSNormFunction.apply(x, gain)


class RotationFunction(torch.autograd.Function):
    """Rotate pairs (i, i + D/2) by an angle, and their gradient back."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, cosine: Tensor, sine: Tensor) -> Tensor:
        ctx.save_for_backward(cosine, sine)
        return copy_if_compiling(rotate_pairs(x, cosine, sine, 1))

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None]:
        cosine, sine = ctx.saved_tensors
        return rotate_pairs(gradient, cosine, sine, -1), None, None


def rotate_pairs(x: Tensor, cosine: Tensor, sine: Tensor, direction: int) -> Tensor:
    first, second = x.float().chunk(2, dim=-1)
    result = x * cosine
    left, right = result.chunk(2, dim=-1)
    left.addcmul_(second, sine, value=-direction)
    right.addcmul_(first, sine, value=direction)
    return result.to(x.dtype)


def rotate(x: Tensor, cosine: Tensor, sine: Tensor) -> Tensor:
    """Rotate each pair (i, i + D/2) of `x [B, T, H, D]` by its position's angle (RoFormer, arXiv 2104.09864, eq. 34).

    The tables are fp32: `cosine [T, 1, D]`, each value twice, and `sine [T, 1, D/2]`.
    """
    if is_exporting():
        return torch.ops.dailytrain.rotate(x, cosine, sine)
    return RotationFunction.apply(x, cosine, sine)


class SquaredReLUFunction(torch.autograd.Function):
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
    if is_exporting():
        return torch.ops.dailytrain.squared_relu(x)
    return SquaredReLUFunction.apply(x)


class SoftcapFunction(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, cap: float) -> Tensor:
        capped = x.float().sigmoid().mul_(2 * cap).sub_(cap)
        ctx.cap, ctx.dtype = cap, x.dtype
        ctx.save_for_backward(capped)
        return copy_if_compiling(capped)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        (capped,) = ctx.saved_tensors
        # cap / 2 x (1 - tanh^2), from the result
        slope = torch.addcmul(gradient.new_full((), ctx.cap / 2), capped, capped, value=-1 / (2 * ctx.cap))
        return slope.mul_(gradient).to(ctx.dtype), None


def softcap(x: Tensor, cap: float) -> Tensor:
    """cap x tanh(x / 2) in fp32, computed as a sigmoid, which takes a CPU a seventh of the time of tanh.

    For the soft cap on logits y, cap x tanh(y / cap) (Gemma 2, arXiv 2408.00118, section 2), pass x = 2 y / cap. Apply
    the factor 2 / cap before the head, where the tensor is small.
    """
    if is_exporting():
        return torch.ops.dailytrain.softcap(x, cap)
    return SoftcapFunction.apply(x, cap)
