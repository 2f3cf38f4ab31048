"""An MLP with ReLU^2 whose hidden layer is written once and read once: for training in bf16 on a Hopper GPU.

Unfused, the hidden layer is written, read, written twice and read again, and so is its gradient. Needs Triton, so it is
imported where it runs.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.function import once_differentiable

from trainer.ops.elementwise import squared_relu
from trainer.ops.triton_mlp import (
    BLOCK_COLUMNS,
    BLOCK_INNER,
    BLOCK_ROWS,
    multiply_gradient,
    multiply_squared_relu,
)


class FusedMLPFunction(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, up: Tensor, down: Tensor) -> Tensor:
        positive, squared = multiply_squared_relu(x, up)
        ctx.save_for_backward(x, up, down, positive, squared)
        return squared @ down.mT

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        x, up, down, positive, squared = ctx.saved_tensors
        gradient = gradient.contiguous()
        hidden = multiply_gradient(gradient, down, positive)
        return hidden @ up, hidden.mT @ x, gradient.mT @ squared


def compute_mlp(x: Tensor, up: Tensor, down: Tensor) -> Tensor:
    """Return max(x up', 0)^2 down' in autocast's type. `x [..., K]`, `up [N, K]`, `down [K, N]`."""
    rows = x.flatten(0, -2)
    if not is_whole_blocks(rows.size(0), *up.shape):
        return F.linear(squared_relu(F.linear(x, up)), down)
    dtype = torch.get_autocast_dtype(x.device.type) if torch.is_autocast_enabled(x.device.type) else x.dtype
    rows, up, down = (tensor.to(dtype).contiguous() for tensor in (rows, up, down))
    return FusedMLPFunction.apply(rows, up, down).unflatten(0, x.shape[:-1])


def is_whole_blocks(rows: int, columns: int, inner: int) -> bool:
    """Return whether the kernels' blocks cover these sizes exactly."""
    return rows % BLOCK_ROWS == columns % BLOCK_COLUMNS == inner % BLOCK_INNER == 0
