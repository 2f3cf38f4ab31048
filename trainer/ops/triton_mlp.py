"""Two matrix products of an MLP with ReLU^2 that finish element-wise work before they write. Needs Triton.

Imported only where these kernels run: on NVIDIA GPUs, and by tests in Triton's interpreter.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

BLOCK_ROWS, BLOCK_COLUMNS, BLOCK_INNER = 128, 256, 64
GROUP = 8  # blocks of rows that are computed side by side, so that they share columns in the cache
LAUNCH = {"num_warps": 8, "num_stages": 3}
BLOCKS = {"block_rows": BLOCK_ROWS, "block_columns": BLOCK_COLUMNS, "block_inner": BLOCK_INNER, "group": GROUP}


@triton.jit
def locate_block(count, columns, block_rows: tl.constexpr, block_columns: tl.constexpr, group: tl.constexpr):
    """Return the rows and columns of this program's block of the result."""
    program = tl.program_id(0)
    row_blocks, column_blocks = count // block_rows, columns // block_columns
    first = program // (group * column_blocks) * group
    height = min(row_blocks - first, group)
    inside = program % (group * column_blocks)
    row_block, column_block = first + inside % height, inside // height
    return row_block * block_rows + tl.arange(0, block_rows), column_block * block_columns + tl.arange(0, block_columns)


@triton.jit
def multiply_block(left, right, rows, columns, inner, stride_inner, stride_column, block_inner: tl.constexpr):
    """Return a block of left times right in fp32. `left [rows, inner]` is contiguous."""
    steps = tl.arange(0, block_inner)
    left_pointers = left + rows.to(tl.int64)[:, None] * inner + steps[None, :]
    right_pointers = right + steps[:, None] * stride_inner + columns[None, :] * stride_column
    total = tl.zeros((rows.shape[0], columns.shape[0]), dtype=tl.float32)
    for _ in range(0, inner, block_inner):
        total = tl.dot(tl.load(left_pointers), tl.load(right_pointers), total, input_precision="ieee")
        left_pointers += block_inner
        right_pointers += block_inner * stride_inner
    return total


@triton.jit
def squared_relu_product_kernel(
    x, weight, positive, squared, count, columns, inner,
    block_rows: tl.constexpr, block_columns: tl.constexpr, block_inner: tl.constexpr, group: tl.constexpr,
):  # fmt: skip
    rows, column_indices = locate_block(count, columns, block_rows, block_columns, group)
    total = multiply_block(x, weight, rows, column_indices, inner, 1, inner, block_inner)
    offsets = rows.to(tl.int64)[:, None] * columns + column_indices[None, :]
    result = tl.maximum(total, 0.0).to(positive.dtype.element_ty)
    tl.store(positive + offsets, result)
    wide = result.to(tl.float32)
    tl.store(squared + offsets, (wide * wide).to(squared.dtype.element_ty))


@triton.jit
def squared_relu_gradient_kernel(
    gradient, weight, positive, result, count, columns, inner,
    block_rows: tl.constexpr, block_columns: tl.constexpr, block_inner: tl.constexpr, group: tl.constexpr,
):  # fmt: skip
    rows, column_indices = locate_block(count, columns, block_rows, block_columns, group)
    total = multiply_block(gradient, weight, rows, column_indices, inner, columns, 1, block_inner)
    offsets = rows.to(tl.int64)[:, None] * columns + column_indices[None, :]
    slope = 2 * tl.load(positive + offsets).to(tl.float32)
    tl.store(result + offsets, (total * slope).to(result.dtype.element_ty))


@torch.library.triton_op("dailytrain::squared_relu_product", mutates_args={})
def multiply_squared_relu(x: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
    """Return r = max(x weight', 0) and r^2, both `[rows, N]`, for contiguous `x [rows, K]` and `weight [N, K]`."""
    (rows, inner), columns = x.shape, weight.size(0)
    positive, squared = x.new_empty(rows, columns), x.new_empty(rows, columns)
    launch = torch.library.wrap_triton(squared_relu_product_kernel)[count_blocks(rows, columns)]
    launch(x, weight, positive, squared, rows, columns, inner, **BLOCKS, **LAUNCH)
    return positive, squared


@torch.library.triton_op("dailytrain::squared_relu_gradient", mutates_args={})
def multiply_gradient(gradient: Tensor, weight: Tensor, positive: Tensor) -> Tensor:
    """Return 2 r (gradient weight), for contiguous `gradient [rows, K]`, `weight [K, N]` and r `[rows, N]`."""
    (rows, inner), columns = gradient.shape, weight.size(1)
    result = torch.empty_like(positive)
    launch = torch.library.wrap_triton(squared_relu_gradient_kernel)[count_blocks(rows, columns)]
    launch(gradient, weight, positive, result, rows, columns, inner, **BLOCKS, **LAUNCH)
    return result


def count_blocks(rows: int, columns: int) -> tuple[int]:
    return (rows // BLOCK_ROWS * (columns // BLOCK_COLUMNS),)
