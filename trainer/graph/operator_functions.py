"""Find the function of an operator, torch's or ours, and the arguments that it takes."""

from __future__ import annotations

import importlib
import operator
from collections.abc import Callable
from typing import Any

import torch

from trainer.graph.schema import Call, GraphError
from trainer.ops import elementwise  # noqa: F401 (declares the operators)

MODEL_PARTS = {
    "dailytrain::attention": "attention:attend_window",
    "dailytrain::norm": "elementwise:norm",
    "dailytrain::rotate": "elementwise:rotate",
    "dailytrain::squared_relu": "elementwise:squared_relu",
    "dailytrain::softcap": "elementwise:softcap",
    "dailytrain::cast_for_autocast": "elementwise:cast_for_autocast",
    "dailytrain::balance_load": "balance:balance_load",
    "dailytrain::recurrence": "recurrence:compute_recurrence",
}
"""Parts of models whose kernel the trainer chooses per device: module and function in `trainer.ops`, imported where a
graph calls it. `trainer.ops.elementwise` declares their arguments. torch.compile reads through their Python."""

SIZE_OPERATORS: dict[str, Callable[..., Any]] = {
    **{f"size::{name}": getattr(operator, name) for name in ("add", "sub", "mul", "floordiv", "mod", "neg")},
    "size::min": torch.sym_min,
    "size::max": torch.sym_max,
}
"""Arithmetic of sizes."""

OWN_OPERATORS = {**SIZE_OPERATORS, "result::item": operator.getitem}
"""Operators that are not torch's own."""

UNINITIALIZED = {"empty": "zeros", "empty_like": "zeros_like", "new_empty": "new_zeros"}
"""Operators that return memory as they find it -> what runs instead: such memory could carry another row's data."""


def find_operator(name: str) -> Callable[..., Any]:
    """Return the function of an operator of the list."""
    if name in MODEL_PARTS:
        module, _, function = MODEL_PARTS[name].partition(":")
        part: Callable[..., Any] = getattr(importlib.import_module(f"trainer.ops.{module}"), function)
        return part
    return OWN_OPERATORS[name] if name in OWN_OPERATORS else find_overload(name)


def find_schema(name: str) -> torch.FunctionSchema:
    """Return the declaration of an operator of torch or a part of models."""
    return find_overload(name)._schema


def find_overload(name: str) -> torch._ops.OpOverload[..., Any]:
    space, _, rest = name.partition("::")
    base, _, overload = rest.partition(".")
    packet = getattr(torch.ops.aten, UNINITIALIZED.get(base, base), None) if space == "aten" else None
    if name in MODEL_PARTS:
        packet = getattr(torch.ops.dailytrain, base)
    found = getattr(packet, overload or "default", None)
    if found is None and base in UNINITIALIZED:
        found = getattr(packet, "default", None)
    # A name can also find an attribute of Python. Operators of TorchScript's interpreter crash outside of it.
    if not isinstance(found, torch._ops.OpOverload) or overload.startswith("prim_"):
        raise GraphError(f"torch has no operator {name}")
    return found


def bind_arguments(call: Call) -> dict[str, Any]:
    """Return the arguments of a call by name. Raises `TypeError` if they are not those of the operator."""
    keywords = call.keywords or {}
    if call.operator in MODEL_PARTS or call.operator.startswith("aten::"):
        declared = find_schema(call.operator).arguments
        positional = [argument.name for argument in declared if not argument.kwarg_only]
        names = [argument.name for argument in declared]
        required = [argument.name for argument in declared if not argument.has_default_value()]
    else:
        positional = required = ["value"] if call.operator == "size::neg" else ["left", "right"]
        names = []
    given = dict(zip(positional, call.arguments, strict=False))
    if len(call.arguments) > len(positional) or not set(keywords) <= set(names) - set(given):
        raise TypeError("which takes no such argument")
    given |= keywords
    if missing := [name for name in required if name not in given]:
        raise TypeError(f"which also takes {' and '.join(missing)}")
    return given
