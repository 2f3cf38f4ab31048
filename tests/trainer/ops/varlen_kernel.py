"""Torch's kernel of attention over concatenated sequences, on CPUs: what `varlen` calls on a GPU runs in tests."""

from __future__ import annotations

import itertools
import math
from typing import Any

import torch
from torch import Tensor


def register_varlen_kernel() -> None:
    """Register the forward and backward kernels of `torch_attn::_varlen_attn` for the CPU; once in a process."""
    import torch.nn.attention.varlen

    if not torch._C._dispatch_has_kernel_for_dispatch_key("torch_attn::_varlen_attn_backward", "CPU"):
        torch.library.register_kernel("torch_attn::_varlen_attn", "cpu")(compute_forward)
        torch.library.register_kernel("torch_attn::_varlen_attn_backward", "cpu")(compute_backward)


class Sequences:
    """The sequences of one call, as slices of queries and of keys, and the masks of what each query sees."""

    def __init__(self, query_starts: Tensor, key_starts: Tensor, window: list[int]) -> None:
        assert window[1] == 0, "causal"
        self.window = window[0]
        queries, keys = query_starts.tolist(), key_starts.tolist()
        self.slices = [
            (slice(*q), slice(*k)) for q, k in zip(itertools.pairwise(queries), itertools.pairwise(keys), strict=True)
        ]

    def compute_weights(self, query: Tensor, key: Tensor) -> Tensor:
        """Return the weights `[H, queries, keys]` of one sequence `[tokens, H, D]`."""
        queries, keys = len(query), len(key)
        distance = torch.arange(keys)[keys - queries :, None] - torch.arange(keys)
        is_seen = (distance >= 0) & ((distance <= self.window) | (self.window < 0))
        scores = torch.einsum("qhd,khd->hqk", query.float(), key.float()) / math.sqrt(query.size(-1))
        return scores.masked_fill(~is_seen, -math.inf).softmax(-1)


def compute_forward(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    query_starts: Tensor,
    key_starts: Tensor,
    max_q: int,
    max_k: int,
    is_causal: bool = False,
    scale: float | None = None,
    window_size: Any = None,
    *others: Any,
) -> tuple[Tensor, Tensor, Tensor]:
    assert query.dtype == key.dtype == value.dtype, "flash kernels take one type"
    mixed = torch.empty_like(query)
    sequences = Sequences(query_starts, key_starts, window_size)
    for q, k in sequences.slices:
        mixed[q] = torch.einsum("hqk,khd->qhd", sequences.compute_weights(query[q], key[k]), value[k].float())
    return mixed, torch.zeros(query.size(1), query.size(0)), torch.zeros(2, dtype=torch.uint64)


def compute_backward(
    gradient: Tensor,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    out: Tensor,
    lse: Tensor,
    query_starts: Tensor,
    key_starts: Tensor,
    max_q: int,
    max_k: int,
    is_causal: bool,
    rng_state: Tensor,
    scale: float | None = None,
    window_size: Any = None,
    *others: Any,
) -> tuple[Tensor, ...]:
    gradients = [torch.zeros_like(tensor) for tensor in (query, key, value)]
    sequences = Sequences(query_starts, key_starts, window_size)
    for q, k in sequences.slices:
        weights, given = sequences.compute_weights(query[q], key[k]), gradient[q].float()
        slope = torch.einsum("qhd,khd->hqk", given, value[k].float())
        slope = weights * (slope - (slope * weights).sum(-1, keepdim=True)) / math.sqrt(query.size(-1))
        gradients[0][q] = torch.einsum("hqk,khd->qhd", slope, key[k].float())
        gradients[1][k] += torch.einsum("hqk,qhd->khd", slope, query[q].float())
        gradients[2][k] += torch.einsum("hqk,qhd->khd", weights, given)
    return tuple(gradients)
