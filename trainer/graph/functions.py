"""Find the function of an operator: torch's, or ours."""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

import torch

from trainer.graph.schema import GraphError
from trainer.ops.attention import attention
from trainer.ops.elementwise import norm, rotate, softcap, squared_relu

OWN_OPERATORS: dict[str, Callable[..., Any]] = {
    "dailytrain::attention": lambda query, key, value, window, documents: attention(
        query, key, value, window=window, documents=documents
    ),
    "dailytrain::norm": norm,
    "dailytrain::rotate": rotate,
    "dailytrain::squared_relu": squared_relu,
    "dailytrain::softcap": softcap,
    "result::item": operator.getitem,
    **{f"size::{name}": getattr(operator, name) for name in ("add", "sub", "mul", "floordiv", "mod", "neg")},
    "size::min": torch.sym_min,
    "size::max": torch.sym_max,
}
"""Operators that are not torch's own. torch.compile reads through their Python."""

UNINITIALIZED = {"empty": "zeros", "empty_like": "zeros_like", "new_empty": "new_zeros"}
"""Operators that return memory as they find it -> what runs instead: such memory could carry another row's data."""


def find_operator(name: str) -> Callable[..., Any]:
    """Return the function of an operator of the list."""
    if name in OWN_OPERATORS:
        return OWN_OPERATORS[name]
    space, _, rest = name.partition("::")
    base, _, overload = rest.partition(".")
    packet = getattr(torch.ops.aten, UNINITIALIZED.get(base, base), None) if space == "aten" else None
    found = getattr(packet, overload or "default", None)
    if found is None and base in UNINITIALIZED:
        found = getattr(packet, "default", None)
    if not isinstance(found, torch._ops.OpOverload):  # a name can also find an attribute of Python
        raise GraphError(f"torch has no operator {name}")
    return found
