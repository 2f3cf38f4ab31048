"""RWKV-5's recurrence by chunks, forward and backward. Needs Triton.

Imported only where these kernels run: on GPUs, and by tests in Triton's interpreter. They compute what
`trainer.ops.recurrence.chunked_recurrence` does, in fp32. The states at the starts of chunks come from one pass over a
row, and so do their gradients, backward; all else is computed for all chunks at once. No sum depends on the order in
which programs end, so results are the same bits twice.

Products are rounded to TF32 where torch's are, else each is three products in TF32, which is as exact as fp32.
"""

from __future__ import annotations

import math
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor
from torch.autograd.function import once_differentiable

CHUNK, BLOCK = 64, 8  # tokens, as in `trainer.ops.recurrence`
CHANNELS = 64  # of a head
LEVELS = int(math.log2(CHUNK // BLOCK))
COLUMNS = 32  # channels of the value that a program carries through a row
SIZES = {"size": CHUNK, "channels": CHANNELS}
STATE_LAUNCH = {"block_columns": COLUMNS, "num_warps": 4}
MAX_BLOCK_RATE = 0.9 * math.log(torch.finfo(torch.float32).max) / (BLOCK // 2)  # as in `pairwise_scores`
CHUNK_LAUNCH = {"block": BLOCK, "levels": LEVELS, "max_block_rate": MAX_BLOCK_RATE, "num_warps": 8}


@triton.jit
def load_tokens(pointer, row, chunk, length, columns, size: tl.constexpr, channels: tl.constexpr):
    """Return columns of a chunk's tokens, zeros after the end of the row."""
    tokens = chunk * size + tl.arange(0, size)
    offsets = (row.to(tl.int64) * length + tokens)[:, None] * channels + columns[None, :]
    return tl.load(pointer + offsets, mask=(tokens < length)[:, None], other=0.0)


@triton.jit
def store_tokens(pointer, values, row, chunk, length, size: tl.constexpr, channels: tl.constexpr):
    tokens = chunk * size + tl.arange(0, size)
    offsets = (row.to(tl.int64) * length + tokens)[:, None] * channels + tl.arange(0, channels)[None, :]
    tl.store(pointer + offsets, values, mask=(tokens < length)[:, None])


@triton.jit
def locate_state(number, columns, channels: tl.constexpr):
    """Return the offsets of columns of a state."""
    keys = tl.arange(0, channels)
    return number.to(tl.int64) * channels * channels + keys[:, None] * channels + columns[None, :]


@triton.jit
def compute_powers(rates, exponents):
    """Return each channel's decay to the power of each exponent."""
    return tl.exp(-rates[None, :] * exponents.to(tl.float32)[:, None])


@triton.jit
def is_square(tokens, half: tl.constexpr):
    """Return which pairs are in the square where the second half of `2 * half` tokens reads the first."""
    later, earlier = tokens[:, None], tokens[None, :]
    is_near = later // (2 * half) == earlier // (2 * half)
    return is_near & (later % (2 * half) >= half) & (earlier % (2 * half) < half)


@triton.jit
def is_in_block(tokens, block: tl.constexpr):
    later, earlier = tokens[:, None], tokens[None, :]
    return (later // block == earlier // block) & (earlier < later)


@triton.jit
def multiply(left, right, precision: tl.constexpr):
    return tl.dot(left, right, input_precision=precision)


@triton.jit
def state_kernel(
    k, v, rate, state, states, last, length, heads, chunks,
    size: tl.constexpr, channels: tl.constexpr, block_columns: tl.constexpr, precision: tl.constexpr,
):  # fmt: skip
    """Write the state before each chunk, and after the last."""
    row = tl.program_id(0)
    columns, tokens = tl.program_id(1) * block_columns + tl.arange(0, block_columns), tl.arange(0, size)
    every = tl.arange(0, channels)
    rates = tl.load(rate + row % heads * channels + every)
    current = tl.load(state + locate_state(row, columns, channels))
    for chunk in range(chunks):
        tl.store(states + locate_state(row * chunks + chunk, columns, channels), current)
        real = tl.minimum(length - chunk * size, size)
        powers = compute_powers(rates, tl.maximum(real - 1 - tokens, 0))
        keys = load_tokens(k, row, chunk, length, every, size, channels) * powers
        values = load_tokens(v, row, chunk, length, columns, size, channels)
        current = tl.exp(-rates * real)[:, None] * current + multiply(tl.trans(keys), values, precision)
    tl.store(last + locate_state(row, columns, channels), current)


@triton.jit
def state_gradient_kernel(
    r, gradient, rate, last, gradients, first, length, heads, chunks,
    size: tl.constexpr, channels: tl.constexpr, block_columns: tl.constexpr, precision: tl.constexpr,
):  # fmt: skip
    """Write the gradient of the state after each chunk, and of the first state. `last`: of the state after the row."""
    row = tl.program_id(0)
    columns, tokens = tl.program_id(1) * block_columns + tl.arange(0, block_columns), tl.arange(0, size)
    every = tl.arange(0, channels)
    rates = tl.load(rate + row % heads * channels + every)
    powers = compute_powers(rates, tokens)
    current = tl.load(last + locate_state(row, columns, channels))
    for step in range(chunks):
        chunk = chunks - 1 - step
        tl.store(gradients + locate_state(row * chunks + chunk, columns, channels), current)
        real = tl.minimum(length - chunk * size, size)
        queries = load_tokens(r, row, chunk, length, every, size, channels) * powers
        outputs = load_tokens(gradient, row, chunk, length, columns, size, channels)
        current = tl.exp(-rates * real)[:, None] * current + multiply(tl.trans(queries), outputs, precision)
    tl.store(first + locate_state(row, columns, channels), current)


@triton.jit
def output_kernel(
    r, k, v, rate, bonus, states, output, length, heads, chunks,
    size: tl.constexpr, channels: tl.constexpr, block: tl.constexpr, levels: tl.constexpr,
    max_block_rate: tl.constexpr, precision: tl.constexpr,
):  # fmt: skip
    row, chunk = tl.program_id(0) // chunks, tl.program_id(0) % chunks
    every, tokens = tl.arange(0, channels), tl.arange(0, size)
    rates = tl.load(rate + row % heads * channels + every)
    strengths = tl.load(bonus + row % heads * channels + every)
    queries = load_tokens(r, row, chunk, length, every, size, channels)
    keys = load_tokens(k, row, chunk, length, every, size, channels)
    own = tl.sum(queries * strengths[None, :] * keys, 1)
    scores = tl.where(tokens[:, None] == tokens[None, :], own[:, None], 0.0)
    clamped = tl.minimum(rates, max_block_rate)
    later = queries * compute_powers(clamped, tokens % block - block // 2)
    earlier = keys * compute_powers(clamped, block // 2 - 1 - tokens % block)
    scores += tl.where(is_in_block(tokens, block), multiply(later, tl.trans(earlier), precision), 0.0)
    for level in tl.static_range(levels):
        later = queries * compute_powers(rates, tokens % (block << level))
        earlier = keys * compute_powers(rates, (block << level) - 1 - tokens % (block << level))
        scores += tl.where(is_square(tokens, block << level), multiply(later, tl.trans(earlier), precision), 0.0)
    values = load_tokens(v, row, chunk, length, every, size, channels)
    state = tl.load(states + locate_state(tl.program_id(0), every, channels))
    read = multiply(scores, values, precision)
    read += multiply(queries * compute_powers(rates, tokens), state, precision)
    store_tokens(output, read, row, chunk, length, size, channels)


@triton.jit
def gradient_kernel(
    r, k, v, rate, bonus, states, gradient, gradients, r_gradient, k_gradient, v_gradient, rate_gradient,
    bonus_gradient, length, heads, chunks,
    size: tl.constexpr, channels: tl.constexpr, block: tl.constexpr, levels: tl.constexpr,
    max_block_rate: tl.constexpr, precision: tl.constexpr,
):  # fmt: skip
    """Write the gradients of a chunk's tokens, and its part of those of rate and bonus."""
    row, chunk = tl.program_id(0) // chunks, tl.program_id(0) % chunks
    every, tokens = tl.arange(0, channels), tl.arange(0, size)
    rates = tl.load(rate + row % heads * channels + every)
    strengths = tl.load(bonus + row % heads * channels + every)
    queries = load_tokens(r, row, chunk, length, every, size, channels)
    keys = load_tokens(k, row, chunk, length, every, size, channels)
    values = load_tokens(v, row, chunk, length, every, size, channels)
    outputs = load_tokens(gradient, row, chunk, length, every, size, channels)
    real = tl.minimum(length - chunk * size, size)

    # the own value of a token, by the bonus
    own = tl.sum(queries * strengths[None, :] * keys, 1)
    own_gradient = tl.sum(outputs * values, 1)
    queries_gradient = own_gradient[:, None] * strengths[None, :] * keys
    keys_gradient = own_gradient[:, None] * strengths[None, :] * queries
    bonuses_gradient = tl.sum(own_gradient[:, None] * queries * keys, 0)
    values_gradient = own[:, None] * outputs

    # the state before the chunk, and that after it
    state = tl.load(states + locate_state(tl.program_id(0), every, channels))
    after = tl.load(gradients + locate_state(tl.program_id(0), every, channels))
    rates_gradient = -real * tl.exp(-rates * real) * tl.sum(state * after, 1)
    part = multiply(outputs, tl.trans(state), precision) * compute_powers(rates, tokens)
    queries_gradient += part
    rates_gradient -= tl.sum(tokens.to(tl.float32)[:, None] * queries * part, 0)
    distances = tl.maximum(real - 1 - tokens, 0)
    powers = compute_powers(rates, distances)
    part = multiply(values, tl.trans(after), precision) * powers
    keys_gradient += part
    rates_gradient -= tl.sum(distances.to(tl.float32)[:, None] * keys * part, 0)
    values_gradient += multiply(keys * powers, after, precision)

    # pairs inside the chunk
    pairs = multiply(outputs, tl.trans(values), precision)
    clamped = tl.minimum(rates, max_block_rate)
    later_powers = compute_powers(clamped, tokens % block - block // 2)
    earlier_powers = compute_powers(clamped, block // 2 - 1 - tokens % block)
    is_pair = is_in_block(tokens, block)
    scores = tl.where(is_pair, multiply(queries * later_powers, tl.trans(keys * earlier_powers), precision), 0.0)
    pairs_gradient = tl.where(is_pair, pairs, 0.0)
    part = multiply(pairs_gradient, keys * earlier_powers, precision) * later_powers
    queries_gradient += part
    exponents = (tokens % block - block // 2).to(tl.float32)
    clamped_gradient = tl.sum(exponents[:, None] * queries * part, 0)
    part = multiply(tl.trans(pairs_gradient), queries * later_powers, precision) * earlier_powers
    keys_gradient += part
    exponents = (block // 2 - 1 - tokens % block).to(tl.float32)
    clamped_gradient += tl.sum(exponents[:, None] * keys * part, 0)
    rates_gradient -= tl.where(rates <= max_block_rate, clamped_gradient, 0.0)
    for level in tl.static_range(levels):
        later_powers = compute_powers(rates, tokens % (block << level))
        earlier_powers = compute_powers(rates, (block << level) - 1 - tokens % (block << level))
        is_pair = is_square(tokens, block << level)
        scores += tl.where(is_pair, multiply(queries * later_powers, tl.trans(keys * earlier_powers), precision), 0.0)
        pairs_gradient = tl.where(is_pair, pairs, 0.0)
        part = multiply(pairs_gradient, keys * earlier_powers, precision) * later_powers
        queries_gradient += part
        rates_gradient -= tl.sum((tokens % (block << level)).to(tl.float32)[:, None] * queries * part, 0)
        part = multiply(tl.trans(pairs_gradient), queries * later_powers, precision) * earlier_powers
        keys_gradient += part
        rates_gradient -= tl.sum(
            ((block << level) - 1 - tokens % (block << level)).to(tl.float32)[:, None] * keys * part, 0
        )
    values_gradient += multiply(tl.trans(scores), outputs, precision)

    store_tokens(r_gradient, queries_gradient, row, chunk, length, size, channels)
    store_tokens(k_gradient, keys_gradient, row, chunk, length, size, channels)
    store_tokens(v_gradient, values_gradient, row, chunk, length, size, channels)
    offsets = tl.program_id(0).to(tl.int64) * channels + every
    tl.store(rate_gradient + offsets, rates_gradient)
    tl.store(bonus_gradient + offsets, bonuses_gradient)


def choose_precision() -> str:
    """Return how the kernels round the factors of products: as torch's products in fp32 are set."""
    return "tf32x3" if torch.get_float32_matmul_precision() == "highest" else "tf32"


@torch.library.triton_op("dailytrain::recurrence_forward", mutates_args={})
def compute_forward(
    r: Tensor, k: Tensor, v: Tensor, rate: Tensor, bonus: Tensor, state: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Return the output, the state after the row, and the states before each chunk `[B, H, chunks, N, N]`.

    All tensors are contiguous and in fp32, `rate` and `bonus` are `[H, N]`.
    """
    rows, heads, length, channels = r.shape
    chunks = -(-length // CHUNK)
    output, last = torch.empty_like(r), torch.empty_like(state)
    states = state.new_empty(rows, heads, chunks, channels, channels)
    sizes, options = (length, heads, chunks), {**SIZES, "precision": choose_precision()}
    launch = torch.library.wrap_triton(state_kernel)[(rows * heads, channels // COLUMNS)]
    launch(k, v, rate, state, states, last, *sizes, **options, **STATE_LAUNCH)
    launch = torch.library.wrap_triton(output_kernel)[(rows * heads * chunks,)]
    launch(r, k, v, rate, bonus, states, output, *sizes, **options, **CHUNK_LAUNCH)
    return output, last, states


@torch.library.triton_op("dailytrain::recurrence_backward", mutates_args={})
def compute_backward(
    r: Tensor, k: Tensor, v: Tensor, rate: Tensor, bonus: Tensor, states: Tensor, gradient: Tensor, last: Tensor
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Return the gradients of r, k, v, of the first state, and of rate and bonus by row, head and chunk.

    `gradient`: of the output; `last`: of the state after the row.
    """
    rows, heads, length, _ = r.shape
    chunks = states.size(2)
    gradients, first = torch.empty_like(states), torch.empty_like(last)
    of_r, of_k, of_v = torch.empty_like(r), torch.empty_like(k), torch.empty_like(v)
    of_rate, of_bonus = (r.new_empty(states.shape[:-1]) for _ in range(2))
    sizes, options = (length, heads, chunks), {**SIZES, "precision": choose_precision()}
    launch = torch.library.wrap_triton(state_gradient_kernel)[(rows * heads, r.size(3) // COLUMNS)]
    launch(r, gradient, rate, last, gradients, first, *sizes, **options, **STATE_LAUNCH)
    launch = torch.library.wrap_triton(gradient_kernel)[(rows * heads * chunks,)]
    results = (of_r, of_k, of_v, of_rate, of_bonus)
    inputs = (r, k, v, rate, bonus, states, gradient, gradients)
    launch(*inputs, *results, *sizes, **options, **CHUNK_LAUNCH)
    return of_r, of_k, of_v, first, of_rate, of_bonus


class RecurrenceFunction(torch.autograd.Function):
    """`chunked_recurrence` of contiguous tensors in fp32, with a rate and a bonus for each channel."""

    @staticmethod
    def forward(
        ctx: Any, r: Tensor, k: Tensor, v: Tensor, rate: Tensor, bonus: Tensor, state: Tensor
    ) -> tuple[Tensor, Tensor]:
        output, last, states = compute_forward(r, k, v, rate, bonus, state)
        ctx.save_for_backward(r, k, v, rate, bonus, states)
        return output, last

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor, last: Tensor) -> tuple[Tensor, ...]:
        r, k, v, rate, bonus, states = ctx.saved_tensors
        of_r, of_k, of_v, first, of_rate, of_bonus = compute_backward(
            r, k, v, rate, bonus, states, gradient.contiguous(), last.contiguous()
        )
        return of_r, of_k, of_v, of_rate.sum((0, 2)), of_bonus.sum((0, 2)), first
