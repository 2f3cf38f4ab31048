"""RWKV-5's recurrence: a head's matrix decays with each token, adds its key and value, and is read by its receptance.

| where | path |
|---|---|
| one token | `recurrence`, the definition |
| GPU, fp32, heads of 64 channels, Triton installed | the kernels of `trainer.ops.triton_recurrence` |
| elsewhere | `chunked_recurrence`, the reference of the kernels |

On an H200 the kernels' error is 6e-7 in fp32. Tests run them in Triton's interpreter, and compile them for sm_90.
"""

from __future__ import annotations

import importlib.util
import math

import torch
import torch.nn.functional as F
from torch import Tensor

from trainer.ops import elementwise

CHUNK = 64  # tokens per chunk, a power of two. The state is passed from chunk to chunk.

BLOCK = 8  # tokens whose pairwise scores come from one matrix product, a power of two

KERNEL_CHANNELS = 64  # of a head in the kernels

HAS_TRITON = importlib.util.find_spec("triton") is not None  # a constant: torch.compile cannot trace the search


def compute_recurrence(
    r: Tensor, k: Tensor, v: Tensor, rate: Tensor, bonus: Tensor, state: Tensor
) -> tuple[Tensor, Tensor]:
    """Return each token's output `[B, H, T, N]` and the state after the last, `[B, H, N, N]`.

    `r, k, v [B, H, T, N]`, `rate, bonus [H, N]` or `[H, 1]` and `state` as in `recurrence`. Raises `ValueError` for
    other shapes.
    """
    check_shapes(r, k, v, rate, bonus, state)
    if elementwise.is_exporting():
        outputs: tuple[Tensor, Tensor] = torch.ops.dailytrain.recurrence(r, k, v, rate, bonus, state)
        return outputs
    if r.size(2) == 1:
        output, state = recurrence(r[:, :, 0], k[:, :, 0], v[:, :, 0], rate, bonus, state)
        return output[:, :, None], state
    if is_kernel_usable(r, k, v, rate, bonus, state):
        from trainer.ops.triton_recurrence import RecurrenceFunction

        rate, bonus = (x.expand(-1, r.size(3)) for x in (rate, bonus))
        result: tuple[Tensor, Tensor] = RecurrenceFunction.apply(
            *(x.contiguous() for x in (r, k, v, rate, bonus, state))
        )
        return result
    return chunked_recurrence(r, k, v, rate, bonus, state)


def check_shapes(r: Tensor, k: Tensor, v: Tensor, rate: Tensor, bonus: Tensor, state: Tensor) -> None:
    """Raise `ValueError` unless the shapes are those of `compute_recurrence`: the kernels would read foreign memory."""
    if r.dim() != 4 or not r.shape == k.shape == v.shape or 0 in r.shape:
        raise ValueError("a recurrence takes r, k and v of one shape with four dimensions")
    rows, heads, _, channels = r.shape
    if rate.dim() != 2 or rate.shape != bonus.shape or rate.size(0) != heads or rate.size(1) not in (1, channels):
        raise ValueError(f"a recurrence takes rate and bonus [heads, channels or 1], and these are {list(rate.shape)}")
    if state.shape != (rows, heads, channels, channels):
        raise ValueError(f"a recurrence takes a state [rows, heads, channels, channels], not {list(state.shape)}")


def is_kernel_usable(*tensors: Tensor) -> bool:
    return (
        HAS_TRITON
        and tensors[0].size(-1) == KERNEL_CHANNELS
        and all(tensor.is_cuda and tensor.dtype == torch.float32 for tensor in tensors)
    )


def recurrence(r: Tensor, k: Tensor, v: Tensor, rate: Tensor, bonus: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
    """Read and update the state for one token: the definition of the recurrence.

    `r, k, v [B, H, N]`; `rate, bonus [H, N]` or `[H, 1]`, a channel's decay is exp(-rate); `state [B, H, N, N]`, with
    the key's channel before the value's. Returns the output `[B, H, N]` and the next state:
    `y = r (S + diag(bonus) k v)`, `S' = diag(exp(-rate)) S + k v`.
    """
    pair = k[..., :, None] * v[..., None, :]
    output = torch.einsum("bhi,bhij->bhj", r, state + bonus[..., None] * pair)
    return output, torch.exp(-rate)[..., None] * state + pair


def chunked_recurrence(
    r: Tensor, k: Tensor, v: Tensor, rate: Tensor, bonus: Tensor, state: Tensor
) -> tuple[Tensor, Tensor]:
    """Compute `recurrence` for a row of tokens, `r, k, v [B, H, T, N]`, with matrix products.

    Nothing can overflow, however strong the decay: its powers have exponents of at least 0, except inside the blocks
    of `pairwise_scores`. A short row is padded to a whole chunk, since smaller products would round differently and
    the start of a row would get slightly different results than the same tokens alone.
    """
    length, size = r.size(2), CHUNK
    missing = -length % size
    if missing:
        r, k, v = (F.pad(x, (0, 0, 0, missing)) for x in (r, k, v))
    r, k, v = (x.unflatten(2, (-1, size)) for x in (r, k, v))  # [B, H, chunks, size, N]
    exponents = torch.arange(size, device=rate.device, dtype=rate.dtype)
    powers = torch.exp(-rate[:, None, :] * exponents[:, None])  # [H, size, N or 1]
    within = pairwise_scores(r, k, rate, powers, bonus) @ v
    # The last token of a chunk is not decayed yet, the one before it once, and so on.
    updates = (k[:, :, :-1] * powers.flip(1)[:, None]).mT @ v[:, :, :-1]
    decay, states = torch.exp(-rate * size)[..., None], [state]
    for update in updates.unbind(2):
        states.append(torch.addcmul(update, decay, states[-1]))
    before = (r * powers[:, None]) @ torch.stack(states, dim=2)
    real = size - missing
    keys = k[:, :, -1, :real] * powers[:, :real].flip(1)
    state = torch.exp(-rate * real)[..., None] * states[-1] + keys.mT @ v[:, :, -1, :real]
    return (within + before).flatten(2, 3)[:, :, :length], state


def pairwise_scores(r: Tensor, k: Tensor, rate: Tensor, powers: Tensor, bonus: Tensor) -> Tensor:
    """Return the weight of each token's value for each token, `[B, H, chunks, size, size]`, zero above the diagonal.

    On the diagonal: the bonus. Below it: `sum_i r_t[i] k_s[i] decay_i^(t-1-s)`. A block of 2m tokens is its two halves
    and the square where the second half reads the first. The square's exponent is split at the middle, t-1-s =
    (t - middle) + (middle-1 - s), so both parts are at least 0. A block of `BLOCK` tokens is one such product with
    parts from -BLOCK/2 up. There rates are clamped to what fp32 can represent: exp(-20), below its rounding error.
    """
    scores = r.new_zeros(*r.shape[:4], r.size(3))
    middle, positions = BLOCK // 2, torch.arange(BLOCK, device=rate.device, dtype=rate.dtype)
    limit = 0.9 * math.log(torch.finfo(rate.dtype).max) / middle
    clamped = rate.clamp(max=limit)[:, None, None, None, :]
    queries = r.unflatten(3, (-1, BLOCK)) * torch.exp(-clamped * (positions - middle)[:, None])
    keys = k.unflatten(3, (-1, BLOCK)) * torch.exp(-clamped * (middle - 1 - positions)[:, None])
    diagonal_blocks(scores, BLOCK).copy_((queries @ keys.mT).tril(-1))
    scores.diagonal(dim1=-2, dim2=-1).copy_((r * bonus[:, None, None] * k).sum(-1))
    m = BLOCK
    while m < r.size(3):
        queries, keys = (x.unflatten(3, (-1, 2, m)) for x in (r, k))
        later = queries[..., 1, :, :] * powers[:, None, None, :m]
        earlier = keys[..., 0, :, :] * powers[:, None, None, :m].flip(3)
        diagonal_blocks(scores, 2 * m)[..., m:, :m].copy_(later @ earlier.mT)
        m *= 2
    return scores


def diagonal_blocks(scores: Tensor, size: int) -> Tensor:
    """Return a view `[..., blocks, size, size]` of the squares on the diagonal of `[..., S, S]`."""
    count = scores.size(-1) // size
    squares = scores.unflatten(-1, (count, size)).unflatten(-3, (count, size))
    return squares.diagonal(dim1=-4, dim2=-2).movedim(-1, -3)
