"""Balance the load of experts without an auxiliary loss: a bias whose gradient is the load, not the loss's."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from trainer.ops import elementwise

SCALE = 2.0**-10
"""Scale that keeps the gradient out of the norm of all gradients. Sign-based optimizers do not depend on it."""


class LoadBalanceFunction(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, gates: Tensor, bias: Tensor, load: Tensor) -> Tensor:
        ctx.save_for_backward(load)
        ctx.dtype = bias.dtype
        return gates.clone()

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor, None]:
        (load,) = ctx.saved_tensors
        share = load.to(ctx.dtype) / load.sum()
        return gradient, (share - share.mean()) * SCALE, None


def balance_load(gates: Tensor, bias: Tensor, load: Tensor) -> Tensor:
    """Return the gates unchanged. The gradient of `bias [E]` is `SCALE` x (each expert's share of the load - the mean).

    `load [E]`: tokens that chose each expert. An optimizer that follows the gradient lowers the bias of an expert with
    more than the mean load (Wang et al., arXiv 2408.15664, algorithm 1). The loss's gradient does not reach the bias.
    """
    if elementwise.is_exporting():
        return torch.ops.dailytrain.balance_load(gates, bias, load)
    return LoadBalanceFunction.apply(gates, bias, load)
