"""Training FLOPs of a model, counted and not reported: forward and backward through torch's `FlopCounterMode`.

Counted are matrix products, convolutions and attention (a product of n x k and k x m is 2nkm). Attention counts as if
every position looked at every other, causal or not, windowed or not: the counter's convention, and the field's. It
counts the same whichever kernel computes it. Element-wise work is not counted.

What the counter cannot see voids the count, with a sentence: an operator without a formula (`FORMULAS` has those of
custom kernels), and tensors that are taken out of torch, to numpy or to machine code.

Not covered: code that finds the counter in its own interpreter and hides from it; work in other threads (an
architecture may start none, `trainer.training.entry_integrity`). The time that a run took, metered from
outside, has to be plausible
for its count as well (`trainer.accounting.plausibility`).
"""

from __future__ import annotations

import re
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, replace
from typing import Any, Self

import torch
from torch import Tensor, nn
from torch._ops import HigherOrderOperator
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import FlopCounterMode

from trainer.accounting.plausibility import CHANGES, LEAVES_TORCH, NO_FORMULA, peak_of
from trainer.models.base import LanguageModel
from trainer.ops.attention import plain

Shape = tuple[int, ...]


def peak(device: torch.device) -> float | None:
    """Return a device's dense bf16 FLOP/s, None where we have no figure (every CPU)."""
    if device.type != "cuda":
        return None
    return peak_of(torch.cuda.get_device_name(device))


# --- formulas ---------------------------------------------------------------------------------------------------------
# Each takes the shapes of an operator's arguments in their order.


def product(matrix: Shape, vector: Shape, *_: Any, **__: Any) -> int:
    """A matrix (or a vector) times a vector: `[..., n] x [n]`."""
    count = 2
    for size in matrix:
        count *= size
    return count


def added_product(start: Shape, matrix: Shape, vector: Shape, *_: Any, **__: Any) -> int:
    return product(matrix, vector)


def attention(query: Shape, key: Shape, value: Shape, *_: Any, **__: Any) -> int:
    """`[B, H, T, D]`: scores and their mixing of values."""
    batch, heads, queries, size = query
    return 2 * batch * heads * queries * key[2] * (size + value[3])


def attention_backward(gradient: Shape, query: Shape, key: Shape, value: Shape, *_: Any, **__: Any) -> int:
    """Twice the forward pass. What a kernel computes again to save memory is its own business."""
    return 2 * attention(query, key, value)


def attention_tokens_first(query: Shape, key: Shape, value: Shape, *_: Any, **__: Any) -> int:
    """`[B, T, H, D]`, as flash-attn has it."""
    batch, queries, heads, size = query
    return 2 * batch * heads * queries * key[1] * (size + value[3])


def attention_tokens_first_backward(gradient: Shape, query: Shape, key: Shape, value: Shape, *_: Any, **__: Any) -> int:
    return 2 * attention_tokens_first(query, key, value)


def recurrence(inputs: Shape, weight_inputs: Shape, weight_state: Shape, *_: Any, **__: Any) -> int:
    """One layer of an LSTM or GRU: `[T, B, I]`, `[gates x H, I]`, `[gates x H, H]`."""
    steps, batch, _size = inputs
    return 2 * steps * batch * weight_inputs[0] * (weight_inputs[1] + weight_state[1])


def recurrence_backward(inputs: Shape, weight_inputs: Shape, weight_state: Shape, *_: Any, **__: Any) -> int:
    return 2 * recurrence(inputs, weight_inputs, weight_state)


KINDS_OF_ATTENTION = ("flash_attention", "efficient_attention", "cudnn_attention")

FORMULAS: dict[str, Callable[..., int]] = {
    "aten::dot": product,
    "aten::vdot": product,
    "aten::mv": product,
    "aten::addmv": added_product,
    "aten::mkldnn_rnn_layer": recurrence,
    "aten::mkldnn_rnn_layer_backward": recurrence_backward,
    "aten::_scaled_dot_product_flash_attention_for_cpu": attention,
    "aten::_scaled_dot_product_flash_attention_for_cpu_backward": attention_backward,
    **{f"aten::_scaled_dot_product_{kind}": attention for kind in KINDS_OF_ATTENTION},
    **{f"aten::_scaled_dot_product_{kind}_backward": attention_backward for kind in KINDS_OF_ATTENTION},
    "flash_attn::_flash_attn_forward": attention_tokens_first,
    "flash_attn::_flash_attn_backward": attention_tokens_first_backward,
}
"""Operators that torch's counter does not know, or counts by what their kernel recomputes. A custom kernel that shall
count gets a line here, in the site's release."""

UNCOUNTED = re.compile(
    r"_?(linalg(?!_vector_norm)|fft|cdist|sparse|cholesky|lu|triangular_solve|embedding_bag|cudnn_rnn|miopen|mkldnn"
    r"|quantized|fbgemm|int_mm|weight_int|wrapped|dyn_quant|mixed_dtypes|scaled_grouped|grouped_mm|transformer|triton"
    r"|native_multi_head|trilinear|addbmm|nested|scaled_dot_product|flash_attention|efficient_attention|flex)"
)
"""Names of torch's own operators that do more than element-wise work; without a formula they void the count."""

OURS = ("aten", "prim", "prims", "c10d", "_c10d_functional")
"""Namespaces of operators whose work is known: torch's own, and communication."""

LEAVING = frozenset(
    (
        *("numpy", "__array__", "tolist", "__dlpack__", "share_memory_", "storage", "untyped_storage"),
        *("data_ptr", "const_data_ptr", "mutable_data_ptr", "_typed_storage", "__cuda_array_interface__"),
    )
)
"""Names by which a tensor's numbers, or their address, are taken out of torch."""


SAME = 0.05
"""How far counts may be apart: where experts are chosen, the text has a small say in the work."""


@dataclass(frozen=True)
class Count:
    """What a model costs."""

    per_token: float
    """FLOPs of a forward and a backward pass over one row, divided by its tokens."""
    void: str = ""
    """Why the count means nothing: a sentence of `trainer.accounting.plausibility`."""
    names: tuple[str, ...] = ()
    """The operators that voided it, for the author."""


class Unknown(TorchDispatchMode):
    """Notes every operator that has no formula and would need one."""

    supports_higher_order_operators = True

    def __init__(self, formulas: set[object]) -> None:
        super().__init__()
        self.formulas = formulas
        self.names: set[str] = set()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        packet = func if isinstance(func, HigherOrderOperator) else func._overloadpacket
        if packet not in self.formulas:
            name = str(packet)
            ours = getattr(func, "namespace", "") in OURS
            if not ours or UNCOUNTED.match(name.partition(".")[2]):
                self.names.add(name)
        return func(*args, **(kwargs or {}))


class Leaving(TorchFunctionMode):
    """Notes when a tensor's numbers are taken out of torch. Whole numbers may be listed: they steer, not compute."""

    def __init__(self) -> None:
        super().__init__()
        self.names: set[str] = set()

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = getattr(func, "__name__", "")
        # A property's getter is called `__get__`.
        name = getattr(getattr(func, "__self__", None), "__name__", "") if name == "__get__" else name
        if name in LEAVING and not (name == "tolist" and not args[0].is_floating_point()):
            self.names.add(name)
        return func(*args, **(kwargs or {}))


def packet(name: str) -> Any:
    """Return torch's operator of that name (`namespace::name`), None where it is not there."""
    namespace, _, operator = name.partition("::")
    return getattr(getattr(torch.ops, namespace), operator, None)


def registered() -> dict[Any, Callable[..., int]]:
    """`FORMULAS` of the operators that are there."""
    return {found: formula for name, formula in FORMULAS.items() if (found := packet(name)) is not None}


def count(model: LanguageModel, tokens: Tensor) -> Count:
    """Count a forward and backward pass over `tokens [B, T]`. Gradients are left empty."""
    counter = FlopCounterMode(display=False, custom_mapping=registered())
    unknown, leaving = Unknown(set(counter.flop_registry)), Leaving()
    with ExitStack() as watching:
        # Attention in matrix products, ours and torch's, unless the model asks for another.
        watching.enter_context(plain())
        watching.enter_context(sdpa_kernel(SDPBackend.MATH))
        for mode in (unknown, counter, leaving):
            watching.enter_context(mode)
        # What training calls, whatever the model's own `forward` may be.
        model.logits(model.features(tokens)).float().logsumexp(-1).sum().backward()
    model.zero_grad(set_to_none=True)
    void = NO_FORMULA if unknown.names else LEAVES_TORCH if leaving.names else ""
    return Count(counter.get_total_flops() / tokens.numel(), void, tuple(sorted(unknown.names | leaving.names)))


def recount(before: Count, model: LanguageModel, tokens: Tensor) -> Count:
    """Count again, later: another answer voids the first."""
    now = count(model, tokens)
    if not before.void and not now.void and abs(now.per_token / before.per_token - 1) > SAME:
        return replace(before, void=CHANGES)
    return before if before.void else replace(before, void=now.void, names=now.names)


class Meter:
    """Counts what happens while it is entered: matrix work of an architecture before the first step."""

    def __init__(self) -> None:
        self._counter = FlopCounterMode(display=False, custom_mapping=registered())

    def __enter__(self) -> Self:
        self._counter.__enter__()
        return self

    def __exit__(self, *error: Any) -> None:
        self._counter.__exit__(*error)

    @property
    def flops(self) -> int:
        return self._counter.get_total_flops()


def parameters(model: nn.Module) -> dict[str, int]:
    """Count numbers: `total`, `embedding` (tables that are looked up, also where the head shares them), the rest."""
    total = sum(parameter.numel() for parameter in model.parameters())
    tables = {id(m.weight): m.weight.numel() for m in model.modules() if isinstance(m, nn.Embedding)}
    embedding = sum(tables.values())
    return {"total": total, "embedding": embedding, "non_embedding": total - embedding}
