"""Count the training FLOPs of a Python model: a forward and backward pass through torch's `FlopCounterMode`.

Matrix products (2nkm for n x k and k x m), convolutions and attention count. Attention counts as if every position saw
every other, regardless of causality, windows and kernel, as in torch's counter and in papers. Element-wise work is not
counted.

Other operators count nothing unless `FORMULAS` has them. The FLOPs of a traced architecture are counted from its
graphs, with all operators (`trainer.graph.counting`).
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from trainer.models.base import LanguageModel
from trainer.ops import devices
from trainer.ops.attention import force_reference
from trainer.ops.devices import get_row_gradients

Shape = tuple[int, ...]
MATRIX_SIZE = 1024  # of the products that measure a CPU's peak


@lru_cache
def find_peak_flops(device: torch.device, precision: str, threads: int) -> float | None:
    """Return one device's peak FLOP/s for MFU: a GPU's from its data sheet (None if unknown), a CPU's measured.

    A CPU's is the best of five products of square matrices. `threads` are torch's; they only key the cache.
    """
    if device.type == "cuda":
        from trainer.accounting.peak_flops import lookup_peak_flops

        return lookup_peak_flops(devices.get_gpu_name(device))
    matrix = torch.full((MATRIX_SIZE, MATRIX_SIZE), 0.5, dtype=torch.float32 if precision == "fp32" else torch.bfloat16)
    product, seconds = torch.empty_like(matrix), []
    for _ in range(5):
        started = time.perf_counter()
        torch.mm(matrix, matrix, out=product)
        seconds.append(time.perf_counter() - started)
    return 2 * MATRIX_SIZE**3 / min(seconds)


# --- formulas ---------------------------------------------------------------------------------------------------------
# Each takes the shapes of an operator's arguments in their order.


def count_matrix_vector(matrix: Shape, vector: Shape, *_: Any, **__: Any) -> int:
    """A matrix (or a vector) times a vector: `[..., n] x [n]`."""
    return 2 * math.prod(matrix)


def count_added_matrix_vector(start: Shape, matrix: Shape, vector: Shape, *_: Any, **__: Any) -> int:
    return count_matrix_vector(matrix, vector)


def count_attention(query: Shape, key: Shape, value: Shape, *_: Any, **__: Any) -> int:
    """`[B, H, T, D]`: the scores and the weighted values."""
    batch, heads, queries, size = query
    return 2 * batch * heads * queries * key[2] * (size + value[3])


def count_attention_backward(gradient: Shape, query: Shape, key: Shape, value: Shape, *_: Any, **__: Any) -> int:
    """Twice the forward pass. Recomputation that saves memory does not count."""
    return 2 * count_attention(query, key, value)


def count_attention_tokens_first(query: Shape, key: Shape, value: Shape, *_: Any, **__: Any) -> int:
    """`[B, T, H, D]`, the layout of flash-attn."""
    batch, queries, heads, size = query
    return 2 * batch * heads * queries * key[1] * (size + value[3])


def count_attention_tokens_first_backward(
    gradient: Shape, query: Shape, key: Shape, value: Shape, *_: Any, **__: Any
) -> int:
    return 2 * count_attention_tokens_first(query, key, value)


def count_recurrence(inputs: Shape, weight_inputs: Shape, weight_state: Shape, *_: Any, **__: Any) -> int:
    """One layer of an LSTM or GRU: `[T, B, I]`, `[gates x H, I]`, `[gates x H, H]`."""
    steps, batch, _size = inputs
    return 2 * steps * batch * weight_inputs[0] * (weight_inputs[1] + weight_state[1])


def count_recurrence_backward(inputs: Shape, weight_inputs: Shape, weight_state: Shape, *_: Any, **__: Any) -> int:
    return 2 * count_recurrence(inputs, weight_inputs, weight_state)


ATTENTION_KERNELS = ("flash_attention", "efficient_attention", "cudnn_attention")

FORMULAS: dict[str, Callable[..., int]] = {
    "aten::dot": count_matrix_vector,
    "aten::vdot": count_matrix_vector,
    "aten::mv": count_matrix_vector,
    "aten::addmv": count_added_matrix_vector,
    "aten::mkldnn_rnn_layer": count_recurrence,
    "aten::mkldnn_rnn_layer_backward": count_recurrence_backward,
    "aten::_scaled_dot_product_flash_attention_for_cpu": count_attention,
    "aten::_scaled_dot_product_flash_attention_for_cpu_backward": count_attention_backward,
    **{f"aten::_scaled_dot_product_{kind}": count_attention for kind in ATTENTION_KERNELS},
    **{f"aten::_scaled_dot_product_{kind}_backward": count_attention_backward for kind in ATTENTION_KERNELS},
    "flash_attn::_flash_attn_forward": count_attention_tokens_first,
    "flash_attn::_flash_attn_backward": count_attention_tokens_first_backward,
}
"""Operators that torch's counter lacks, or counts with their recomputation. Add custom kernels here, in the site's
release."""


def get_registered_formulas() -> dict[Any, Callable[..., int]]:
    """Return `FORMULAS` by torch's operators `namespace::name`, of those that exist here."""
    split = {tuple(name.split("::")): formula for name, formula in FORMULAS.items()}
    operators = {getattr(getattr(torch.ops, space), name, None): formula for (space, name), formula in split.items()}
    return {operator: formula for operator, formula in operators.items() if operator is not None}


def count_flops(model: LanguageModel, tokens: Tensor, *, cut_windows: bool = False) -> float:
    """Return the FLOPs per token of a forward and backward pass over `tokens [B, T]`. Leaves gradients empty.

    `cut_windows`: attention with a window counts only the window's tokens, as nanochat counts.
    """
    counter = FlopCounterMode(display=False, custom_mapping=get_registered_formulas())
    # Attention as matrix products, ours and torch's, unless the model selects another kernel.
    with force_reference(cut_windows), sdpa_kernel(SDPBackend.MATH), counter:
        # As in training, which does not call the model's `forward`.
        model.logits(model.features(tokens)).float().logsumexp(-1).sum().backward()
    model.zero_grad(set_to_none=True)
    return counter.get_total_flops() / tokens.numel()


def count_parameters(model: nn.Module) -> dict[str, int]:
    """Return the number of parameters: `total`, `embedding` (lookup tables, also if the head shares them), the rest."""
    total = sum(parameter.numel() for parameter in model.parameters())
    tables = {id(m.weight): m.weight.numel() for m in model.modules() if isinstance(m, nn.Embedding)}
    tables |= {id(p): p.numel() for p in model.parameters() if get_row_gradients(p) is not None}
    embedding = sum(tables.values())
    return {"total": total, "embedding": embedding, "non_embedding": total - embedding}
