"""Causal attention with sliding windows and document masks, through the fastest available kernel.

| where | case | path |
|---|---|---|
| GPU, 16 bit | plain, square | `sdpa`: torch picks flash, which FA3 then is too, or cuDNN. Both were faster than `varlen` on an H200 (benchmarks/results/gpu.md) |
| anywhere | plain, square | `sdpa`, which has a flash kernel for CPUs |
| anywhere | plain, one query, all keys | `sdpa` without a mask |
| GPU, 16 bit | the rest, but documents only of a square case | `flash-attn 2` if installed and right, without documents and without FA3 or FA4; else `varlen`: torch's own flash kernels, FA3 (Hopper) or FA4 (Blackwell) after `activate_flash_attention` where such a package is installed, FA2 otherwise |
| anywhere | the rest | `masked sdpa` |

"Plain" means neither window nor documents; "square" means as many queries as keys. The first matching row applies.
All paths equal `reference_attention` up to rounding, and tests check it. Under autocast all take its type, as torch's
sdpa does.

Not covered: grouped queries (repeat the keys), dropout, FlexAttention (it has no backward pass on a CPU).
"""  # noqa: E501 - a table

from __future__ import annotations

import importlib.util
import math
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from trainer.errors import to_one_line
from trainer.ops import devices, elementwise
from trainer.ops.elementwise import cast_for_autocast

AttentionPath = Literal["flash-attn 2", "varlen", "sdpa", "masked sdpa", "reference"]

# A package has an origin; flash-attn-4 brings only a namespace of this name, which has none.
HAS_FLASH_ATTENTION_2 = getattr(importlib.util.find_spec("flash_attn"), "origin", None) is not None

MAX_TRIAL_ERROR = 0.03  # relative, in bf16; wrong windows are wrong by more than 0.3

head_sizes: set[int] = set()  # of calls outside of a compiler
_is_flash_2_active = False  # flash-attn 2
_refused_flash: dict[str, str] = {}  # installed packages that failed in a trial, and how
_is_reference_forced = False
_is_window_cut = False  # with the reference: keys beyond the window are left out, as many for each query


def attention(
    query: Tensor, key: Tensor, value: Tensor, *, window: int | None = None, documents: Tensor | None = None
) -> Tensor:
    """Return softmax(q k' / sqrt(D)) v for each query, `[B, H, Tq, D]`.

    `query [B, H, Tq, D]` are the last Tq of the Tk positions of `key` and `value [B, H, Tk, D]`. Each sees its own and
    earlier positions. `window`: number of tokens it sees, including itself. `documents [B, Tk]`: document numbers,
    non-decreasing along a row; each position sees only its own document. Raises `ValueError` for other shapes.
    """
    check_shapes(query, key, value, window, documents)
    window = None if window is None or window >= key.size(2) else window
    if elementwise.is_exporting():
        return torch.ops.dailytrain.attention(query, key, value, window, documents)
    if not torch.compiler.is_compiling():
        head_sizes.add(query.size(3))
    # A value may have another type than the query: a traced graph holds fixed ones. Flash kernels refuse that.
    query, key, value = (cast_for_autocast(x) for x in (query, key, value))
    path = select_path(query, key, window=window, documents=documents)
    if path == "sdpa":
        return F.scaled_dot_product_attention(query, key, value, is_causal=query.size(2) > 1)
    if path == "varlen":
        return varlen_attention(query, key, value, window, documents)
    if path == "flash-attn 2":
        return flash_attention_2(query, key, value, window)
    if path == "reference" and _is_window_cut and window is not None:
        return (query @ key[:, :, -window:].mT).softmax(-1) @ value[:, :, -window:]
    if path == "reference":
        return reference_attention(query, key, value, window=window, documents=documents)
    mask = build_mask(query.size(2), key.size(2), query.device, window=window, documents=documents)
    return F.scaled_dot_product_attention(query, key, value, attn_mask=mask)


def attend_window(query: Tensor, key: Tensor, value: Tensor, window: int | None, documents: Tensor | None) -> Tensor:
    """Return `attention` for arguments in the order of its operator in graphs."""
    return attention(query, key, value, window=window, documents=documents)


def check_shapes(query: Tensor, key: Tensor, value: Tensor, window: int | None, documents: Tensor | None) -> None:
    """Raise `ValueError` unless the shapes are those of `attention`. Kernels of GPUs do not broadcast: at other shapes
    they would read memory of others."""
    if query.dim() != 4 or key.dim() != 4 or key.shape != value.shape:
        raise ValueError("attention takes query, key and value of four dimensions, and key and value of one shape")
    if query.shape[:2] != key.shape[:2] or query.size(3) != key.size(3) or query.size(2) > key.size(2):
        raise ValueError(
            f"attention takes key and value of the query's rows, heads and width, and no fewer keys than queries;"
            f" query {list(query.shape)}, key {list(key.shape)}: `expand` or repeat the keys"
        )
    if documents is not None and documents.shape != (key.size(0), key.size(2)):
        raise ValueError(f"attention takes documents [rows, keys], and these are {list(documents.shape)}")
    if window is not None and window < 1:
        raise ValueError(f"attention takes a window of at least 1, and this is {window}")


def select_path(
    query: Tensor, key: Tensor, *, window: int | None = None, documents: Tensor | None = None
) -> AttentionPath:
    """Return the name of the path that `attention` takes for these tensors."""
    if _is_reference_forced:
        return "reference"
    queries, keys = query.size(2), key.size(2)
    is_plain = documents is None and (window is None or window >= keys)
    is_on_gpu = query.is_cuda and query.dtype in (torch.bfloat16, torch.float16)
    if is_plain and queries in (1, keys):
        return "sdpa"
    if is_on_gpu:
        if documents is None and _is_flash_2_active:
            return "flash-attn 2"
        if documents is None or queries == keys:
            return "varlen"
    return "masked sdpa"


def describe_kernels(device: torch.device) -> str:
    """Return, for logs, the attention kernels of a device."""
    if device.type != "cuda":
        return "torch's sdpa"
    from torch.nn.attention import current_flash_attention_impl

    newer = current_flash_attention_impl()
    package = ", flash-attn 2" if _is_flash_2_active else ""
    refused = "".join(f"; {name} is installed and not used: {reason}" for name, reason in _refused_flash.items())
    return f"torch's sdpa for full layers, else varlen with {newer or 'FA2'}{package}{refused}"


@contextmanager
def force_reference(cut_windows: bool = False) -> Iterator[None]:
    """Context manager: `attention` uses `reference_attention`, for counting FLOPs.

    `cut_windows`: with a window each query is multiplied with as many keys as the window has. Results are then wrong.
    """
    global _is_reference_forced, _is_window_cut
    before = _is_reference_forced, _is_window_cut
    _is_reference_forced, _is_window_cut = True, cut_windows
    try:
        yield
    finally:
        _is_reference_forced, _is_window_cut = before


# --- the definition ---------------------------------------------------------------------------------------------------


def reference_attention(
    query: Tensor, key: Tensor, value: Tensor, *, window: int | None = None, documents: Tensor | None = None
) -> Tensor:
    """The definition of `attention`, in matrix products and fp32 (arXiv 1706.03762)."""
    scores = query.float() @ key.float().mT / math.sqrt(query.size(-1))
    mask = build_mask(query.size(2), key.size(2), query.device, window=window, documents=documents)
    weights = scores.masked_fill(~mask, -math.inf).softmax(-1)
    return (weights @ value.float()).to(value.dtype)


def build_mask(
    queries: int, keys: int, device: torch.device, *, window: int | None = None, documents: Tensor | None = None
) -> Tensor:
    """Return booleans `[Tq, Tk]`, or `[B, 1, Tq, Tk]` with documents: True where a query sees a key."""
    positions = torch.arange(keys, device=device)
    distance = positions[keys - queries :, None] - positions
    mask = distance >= 0
    if window is not None:
        mask &= distance < window
    if documents is not None:
        same = documents[:, keys - queries :, None] == documents[:, None, :]
        mask = (mask & same)[:, None]
    return mask


# --- kernels of GPUs --------------------------------------------------------------------------------------------------


def varlen_attention(
    query: Tensor, key: Tensor, value: Tensor, window: int | None, documents: Tensor | None = None
) -> Tensor:
    """Torch's flash attention for concatenated sequences, each a row or a document.

    With documents, their number requires a synchronization with the GPU, which also breaks a compiled graph.
    """
    from torch.nn.attention.varlen import varlen_attn

    rows, _, queries, _ = query.shape
    keys = key.size(2)
    if documents is None:
        query_starts, key_starts = (
            torch.arange(0, (rows + 1) * length, length, device=query.device, dtype=torch.int32)
            for length in (queries, keys)
        )
    else:
        query_starts = key_starts = find_document_boundaries(documents)
    mixed = varlen_attn(
        *(x.transpose(1, 2).flatten(0, 1) for x in (query, key, value)),
        *(query_starts, key_starts, queries, keys),
        window_size=(-1 if window is None else window - 1, 0),
    )
    assert isinstance(mixed, Tensor)
    return mixed.unflatten(0, (rows, queries)).transpose(1, 2)


def find_document_boundaries(documents: Tensor) -> Tensor:
    """Return the starts of all documents in the flattened `[B, T]`, and the end: int32 `[documents + 1]`."""
    first = torch.ones_like(documents, dtype=torch.bool)
    first[:, 1:] = documents[:, 1:] != documents[:, :-1]
    starts = first.flatten().nonzero().flatten()
    return F.pad(starts, (0, 1), value=documents.numel()).to(torch.int32)


def flash_attention_2(query: Tensor, key: Tensor, value: Tensor, window: int | None) -> Tensor:
    """The kernel of the package flash-attn. The last query sees the last key, as in `attention`."""
    from flash_attn import flash_attn_func  # type: ignore[import-not-found,unused-ignore]

    size = (-1 if window is None else window - 1, 0)
    mixed = flash_attn_func(*(x.transpose(1, 2) for x in (query, key, value)), causal=True, window_size=size)
    return mixed.transpose(1, 2)


def activate_flash_attention(device: torch.device, sizes: Collection[int]) -> str | None:
    """Use FA3, FA4 or flash-attn 2 if the GPU and an installed package allow; return its name.

    A package is tried with heads of these sizes and windows, forward and backward: it may be built for some sizes, and
    torch 2.11 registers FA4 without a backward pass for windows. Never raises: torch's own FA2 is the fallback.
    """
    global _is_flash_2_active
    from torch.nn.attention import activate_flash_attention_impl, restore_flash_attention_impl

    _is_flash_2_active = False  # an earlier run in this process may have had other heads
    restore_flash_attention_impl(_raise_warn=False)
    newer = {9: ("FA3", "FA4"), 10: ("FA4",)}.get(devices.get_generation(device), ())
    for name in (*newer, *(("flash-attn 2",) if HAS_FLASH_ATTENTION_2 else ())) if sizes else ():
        try:
            if name in newer:
                activate_flash_attention_impl(name)
            for size in sizes:
                try_windows(device, size, varlen_attention if name in newer else flash_attention_2)
        except Exception as error:  # of a package that was built for another GPU or torch, or for other heads
            # Those of `newer` are not installed, or not known to this torch.
            if name not in newer or not isinstance(error, (ModuleNotFoundError, ValueError)):
                heads = ", ".join(map(str, sorted(sizes)))
                _refused_flash[name] = f"heads of {heads}: {type(error).__name__}: {to_one_line(error)[:200]}"
            restore_flash_attention_impl(_raise_warn=False)
            continue
        _refused_flash.pop(name, None)
        _is_flash_2_active = name not in newer
        return name
    return None


def try_windows(device: torch.device, head_size: int, attend: Callable[..., Tensor]) -> None:
    """Raise an error unless a kernel equals the definition with a window, forward and backward."""
    window, shape = 64, (2, 256, 2, head_size)
    generator = torch.Generator(device).manual_seed(0)
    query, key, value, direction = (
        torch.randn(shape, dtype=torch.bfloat16, device=device, generator=generator).transpose(1, 2) for _ in range(4)
    )
    leaves = [tensor.requires_grad_() for tensor in (query, key, value)]
    found, wanted = attend(query, key, value, window), reference_attention(*leaves, window=window)
    results = ([out.detach(), *torch.autograd.grad(out, leaves, direction)] for out in (found, wanted))
    for ours, right in zip(*results, strict=True):
        error = float((ours.float() - right.float()).norm() / right.float().norm())
        if not error < MAX_TRIAL_ERROR:
            raise ArithmeticError(f"a windowed pass differs from the definition by {error:.3g}")
