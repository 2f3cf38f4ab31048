"""Count the training FLOPs of a Python model: a forward and backward pass through torch's `FlopCounterMode`.

Matrix products (2nkm for n x k and k x m), convolutions and attention count. Attention counts as if every position saw
every other, regardless of causality, windows and kernel, as in torch's counter and in papers. Element-wise work is not
counted.

An operator without a formula makes the count void (`FORMULAS` has those of custom kernels). The FLOPs of a traced
architecture are counted from its graphs, by `trainer.graph.counting`.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor, nn
from torch._ops import HigherOrderOperator
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import FlopCounterMode

from trainer.accounting.peak_flops import lookup_peak_flops
from trainer.accounting.plausibility import NO_FORMULA
from trainer.models.base import LanguageModel
from trainer.ops.attention import force_reference

Shape = tuple[int, ...]
MATRIX_SIZE = 1024  # of the products that measure a CPU's peak


@lru_cache
def find_peak_flops(device: torch.device, precision: str, threads: int) -> float | None:
    """Return one device's peak FLOP/s for MFU: a GPU's from its data sheet (None if unknown), a CPU's measured.

    A CPU's is the best of five products of square matrices. `threads` are torch's; they only key the cache.
    """
    if device.type == "cuda":
        return lookup_peak_flops(torch.cuda.get_device_name(device))
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
    count_flops = 2
    for size in matrix:
        count_flops *= size
    return count_flops


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

HEAVY_OPERATORS = re.compile(
    r"_?(linalg(?!_vector_norm)|fft|cdist|sparse|cholesky|lu|triangular_solve|embedding_bag|cudnn_rnn|miopen|mkldnn"
    r"|quantized|fbgemm|int_mm|weight_int|wrapped|dyn_quant|mixed_dtypes|scaled_grouped|grouped_mm|transformer|triton"
    r"|native_multi_head|trilinear|addbmm|nested|scaled_dot_product|flash_attention|efficient_attention|flex)"
)
"""Names of torch's own operators that do more than element-wise work. Without a formula they void the count."""

KNOWN_NAMESPACES = ("aten", "prim", "prims", "c10d", "_c10d_functional")
"""Namespaces of operators whose work is known: torch's own, and communication."""


@dataclass(frozen=True)
class FlopCount:
    """A model's FLOPs per token."""

    per_token: float  # FLOPs of a forward and a backward pass over one row, divided by its tokens
    void: str = ""  # why the count is void: one of `plausibility.VOID_REASONS`
    names: tuple[str, ...] = ()  # the operators that made it void, for the author


class UnknownOperatorDetector(TorchDispatchMode):
    """Records operators that need a formula and have none."""

    supports_higher_order_operators = True

    def __init__(self, formulas: set[object]) -> None:
        super().__init__()
        self.formulas = formulas
        self.names: set[str] = set()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        operator = func if isinstance(func, HigherOrderOperator) else func._overloadpacket
        if operator not in self.formulas:
            name = str(operator)
            is_known = getattr(func, "namespace", "") in KNOWN_NAMESPACES
            if not is_known or HEAVY_OPERATORS.match(name.partition(".")[2]):
                self.names.add(name)
        return func(*args, **(kwargs or {}))


def get_registered_formulas() -> dict[Any, Callable[..., int]]:
    """Return `FORMULAS` by torch's operators `namespace::name`, of those that exist here."""
    split = {tuple(name.split("::")): formula for name, formula in FORMULAS.items()}
    operators = {getattr(getattr(torch.ops, space), name, None): formula for (space, name), formula in split.items()}
    return {operator: formula for operator, formula in operators.items() if operator is not None}


def count_flops(model: LanguageModel, tokens: Tensor) -> FlopCount:
    """Count a forward and backward pass over `tokens [B, T]`. Leaves gradients empty."""
    counter = FlopCounterMode(display=False, custom_mapping=get_registered_formulas())
    unknown = UnknownOperatorDetector(set(counter.flop_registry))
    # Attention as matrix products, ours and torch's, unless the model selects another kernel.
    with force_reference(), sdpa_kernel(SDPBackend.MATH), unknown, counter:
        # As in training, which does not call the model's `forward`.
        model.logits(model.features(tokens)).float().logsumexp(-1).sum().backward()
    model.zero_grad(set_to_none=True)
    names = tuple(sorted(unknown.names))
    return FlopCount(counter.get_total_flops() / tokens.numel(), NO_FORMULA if names else "", names)


def count_parameters(model: nn.Module) -> dict[str, int]:
    """Return the number of parameters: `total`, `embedding` (lookup tables, also if the head shares them), the rest."""
    total = sum(parameter.numel() for parameter in model.parameters())
    tables = {id(m.weight): m.weight.numel() for m in model.modules() if isinstance(m, nn.Embedding)}
    embedding = sum(tables.values())
    return {"total": total, "embedding": embedding, "non_embedding": total - embedding}
