"""Causal attention, with sliding windows and document masks, through the fastest kernel that is there.

| where | asked | path |
|---|---|---|
| GPU, 16 bit | anything | `flash-attn 2` if installed and no documents; else `varlen`: torch's own flash kernels, FA3 (Hopper) or FA4 (Blackwell) where such a package is installed, FA2 otherwise |
| GPU, 16 bit | plain, square | `sdpa`: torch picks flash or cuDNN; FA3 and FA4 reach it too |
| anywhere | plain, square | `sdpa`, which has a flash kernel for CPUs |
| anywhere | one query, all keys | `sdpa` without a mask |
| anywhere | the rest | `masked sdpa` |

"Plain" is neither window nor documents; "square" is as many queries as keys. The first row of the table that fits is
taken, except that plain and square goes to `sdpa`. All paths are `reference` up to rounding, and tests hold them to it.

Not covered: grouped queries (repeat the keys), dropout, FlexAttention (it has no backward pass on a CPU).
The paths of GPUs have been written with care and have **not been run yet**.
"""  # noqa: E501 - a table

from __future__ import annotations

import importlib.util
import math
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor

Path = Literal["flash-attn 2", "varlen", "sdpa", "masked sdpa", "reference"]

_plain = False


def attention(
    query: Tensor, key: Tensor, value: Tensor, *, window: int | None = None, documents: Tensor | None = None
) -> Tensor:
    """Return what each query reads, `[B, H, Tq, D]`.

    `query [B, H, Tq, D]` are the last Tq of the Tk positions of `key` and `value [B, H, Tk, D]`; each looks at its own
    and earlier positions. `window`: how many tokens it sees, the current one among them. `documents [B, Tk]`, whole
    numbers that never fall along a row: it sees only its own document.
    """
    window = None if window is None or window >= key.size(2) else window
    chosen = path(query, key, window=window, documents=documents)
    if chosen == "sdpa":
        return F.scaled_dot_product_attention(query, key, value, is_causal=query.size(2) > 1)
    if chosen == "varlen":
        return varlen(query, key, value, window, documents)
    if chosen == "flash-attn 2":
        return flash_attn_2(query, key, value, window)
    if chosen == "reference":
        return reference(query, key, value, window=window, documents=documents)
    mask = visible(query.size(2), key.size(2), query.device, window=window, documents=documents)
    return F.scaled_dot_product_attention(query, key, value, attn_mask=mask)


def path(query: Tensor, key: Tensor, *, window: int | None = None, documents: Tensor | None = None) -> Path:
    """Return the name of the path that `attention` takes for such tensors."""
    if _plain:
        return "reference"
    queries, keys = query.size(2), key.size(2)
    plain = documents is None and (window is None or window >= keys)
    if plain and queries in (1, keys):
        return "sdpa"
    if query.is_cuda and query.dtype in (torch.bfloat16, torch.float16):
        if documents is None and has_flash_attn_2():
            return "flash-attn 2"
        if documents is None or queries == keys:
            return "varlen"
    return "masked sdpa"


def describe(device: torch.device) -> str:
    """Return, for logs, which kernels attention has on a device. On a GPU this activates FA3 or FA4 where it can."""
    if device.type != "cuda":
        return "torch's sdpa"
    newer = activate(device)
    return f"torch's sdpa and varlen with {newer or 'FA2'}" + (", flash-attn 2" if has_flash_attn_2() else "")


@contextmanager
def plain() -> Iterator[None]:
    """Within it `attention` is `reference`: for counting FLOPs."""
    global _plain
    before, _plain = _plain, True
    try:
        yield
    finally:
        _plain = before


# --- the definition ---------------------------------------------------------------------------------------------------


def reference(
    query: Tensor, key: Tensor, value: Tensor, *, window: int | None = None, documents: Tensor | None = None
) -> Tensor:
    """`attention` in matrix products and fp32: softmax(q k' / sqrt(D)) v, of what is visible (arXiv 1706.03762)."""
    scores = query.float() @ key.float().mT / math.sqrt(query.size(-1))
    seen = visible(query.size(2), key.size(2), query.device, window=window, documents=documents)
    weights = scores.masked_fill(~seen, -math.inf).softmax(-1)
    return (weights @ value.float()).to(value.dtype)


def visible(
    queries: int, keys: int, device: torch.device, *, window: int | None = None, documents: Tensor | None = None
) -> Tensor:
    """Return booleans `[Tq, Tk]`, or `[B, 1, Tq, Tk]` with documents: may the row's position look at the column's?"""
    positions = torch.arange(keys, device=device)
    distance = positions[keys - queries :, None] - positions
    seen = distance >= 0
    if window is not None:
        seen &= distance < window
    if documents is not None:
        same = documents[:, keys - queries :, None] == documents[:, None, :]
        seen = (seen & same)[:, None]
    return seen


# --- kernels of GPUs --------------------------------------------------------------------------------------------------


def varlen(query: Tensor, key: Tensor, value: Tensor, window: int | None, documents: Tensor | None) -> Tensor:
    """Torch's flash attention for sequences laid end to end: a row, or a document, is a sequence.

    With documents one wait for the GPU, to learn how many there are, which also ends a compiled graph.
    """
    from torch.nn.attention.varlen import varlen_attn

    rows, _, queries, _ = query.shape
    keys = key.size(2)
    if documents is None:
        of_queries, of_keys = (
            torch.arange(0, (rows + 1) * length, length, device=query.device, dtype=torch.int32)
            for length in (queries, keys)
        )
    else:
        of_queries = of_keys = boundaries(documents)
    mixed = varlen_attn(
        *(x.transpose(1, 2).flatten(0, 1) for x in (query, key, value)),
        *(of_queries, of_keys, queries, keys),
        window_size=(-1 if window is None else window - 1, 0),
    )
    assert isinstance(mixed, Tensor)
    return mixed.unflatten(0, (rows, queries)).transpose(1, 2)


def boundaries(documents: Tensor) -> Tensor:
    """Return where documents start in `[B, T]` laid end to end, and the end: int32 `[documents + 1]`."""
    first = torch.ones_like(documents, dtype=torch.bool)
    first[:, 1:] = documents[:, 1:] != documents[:, :-1]
    starts = first.flatten().nonzero().flatten()
    return F.pad(starts, (0, 1), value=documents.numel()).to(torch.int32)


def flash_attn_2(query: Tensor, key: Tensor, value: Tensor, window: int | None) -> Tensor:
    """The package's kernel. Like ours, it lets the last query see the last key."""
    from flash_attn import flash_attn_func  # type: ignore[import-not-found,unused-ignore]

    size = (-1 if window is None else window - 1, 0)
    mixed = flash_attn_func(*(x.transpose(1, 2) for x in (query, key, value)), causal=True, window_size=size)
    return mixed.transpose(1, 2)


@torch.compiler.assume_constant_result
def has_flash_attn_2() -> bool:
    return importlib.util.find_spec("flash_attn") is not None


def activate(device: torch.device) -> str | None:
    """Put FA4 or FA3 behind torch's flash attention where that GPU and an installed package allow it; return its name.

    Never fails: without them torch's own FA2 stays.
    """
    from torch.nn.attention import activate_flash_attention_impl, current_flash_attention_impl

    if (current := current_flash_attention_impl()) is not None:
        return current
    generation = torch.cuda.get_device_capability(device)[0]
    for name in {9: ("FA3", "FA4"), 10: ("FA4",)}.get(generation, ()):
        try:
            activate_flash_attention_impl(name)
        except (ImportError, RuntimeError, ValueError, AttributeError):
            continue
        return name
    return None
