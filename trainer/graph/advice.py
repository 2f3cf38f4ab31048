"""Advice on how to rewrite code that cannot be traced."""

from __future__ import annotations

import re

ADVICE = {
    r"^aten::squeeze_?$": "`squeeze()` also drops the rows if there is one: name the dimension, `x.squeeze(1)`",
    r"one_hot": "`F.one_hot` needs the number of classes: `F.one_hot(x, classes)`",
    r"aten(\.|::)embedding_bag": "call it as `F.embedding_bag` or `nn.EmbeddingBag` with indices [bags, length]",
    r"aten(\.|::)bincount": "`bincount` counts values; use `F.one_hot(x, classes).sum(dim)`, whose shape is fixed",
    r"DynamicOutputShape|nonzero|aten(\.|::)(_?unique|repeat_interleave\.(self_)?Tensor)|masked_select|boolean": (
        "the shape of a result depends on values (`nonzero`, `unique`, `x[mask]`), and shapes in a graph are fixed: "
        "use `torch.where` or multiply by the mask"
    ),
    r"DataDependentOutput|GuardOnDataDependent|aten(\.|::)_local_scalar_dense|aten::item|could not (guard|extract)": (
        "a number is read from a tensor (`.item()`, `int(x)`, `if x > 0`, a loop over values), and a graph is the same "
        "for all values: use `torch.where`, or compute with the tensor itself"
    ),
    r"ConstraintViolation|[Cc]onstraints? violated|[Ss]pecializ|is invalid for input of size": (
        "the number of rows or positions is a fixed number here: use `x.size(0)`, -1 or `unflatten`"
    ),
    r"convert all Tensors to FakeTensors|made outside": (
        "a tensor from outside of the model is used: create it in the constructor by torch's functions and"
        " `register_buffer` it, or create it in the pass"
    ),
    r"numpy|__array__": "a tensor leaves torch for numpy, which a graph cannot hold: use torch's function of that name",
    r"support for cuda|with CUDA|DeviceMismatch|not on the expected device|No CUDA GPUs|NVIDIA driver": (
        "a tensor is put on a fixed device, and a graph runs on any: pass `device=tokens.device`, remove `.cuda()`"
    ),
    r"does not require grad and does not have a grad_fn": (
        "a gradient is computed inside of the pass, which a graph cannot hold: write its formula"
    ),
    r"SymIntArrayRef expected|torch\._C\.Generator": (
        "this call takes no size that is unknown while tracing: remove `generator=`, or use `torch.rand_like`"
    ),
}
"""Patterns of torch's messages -> what to write instead. The first that matches the message or the line counts."""


def find_advice(message: str) -> str | None:
    """Return what to write instead, for a message of torch or the name of an operator."""
    return next((advice for pattern, advice in ADVICE.items() if re.search(pattern, message)), None)
