"""Check what the calls of a graph pass to each other: tensors, and sizes that depend on rows and positions only.

A size is `a + b batch + c positions + d batch positions` with whole numbers a to d. So no size depends on the values
of a tensor, and none jumps at certain numbers of rows.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import sympy

from trainer.graph.functions import OWN_OPERATORS, find_operator
from trainer.graph.schema import MAX_SIZE, SIZE_NAMES, Call, Graph, GraphError, Input, iterate_values

SYMBOLS = {name: sympy.Symbol(name, integer=True, positive=True) for name in SIZE_NAMES}

TENSOR, TENSORS = "a tensor", "several tensors"

Kind = Any
"""What a reference stands for: TENSOR, TENSORS, an `Input` (a tensor of declared shape), a size as a `sympy.Expr`,
or a list of kinds (results of a region)."""

SIZE_OPERATORS = {**OWN_OPERATORS, "size::min": sympy.Min, "size::max": sympy.Max}


def check_argument_types(graph: Graph, describe: Callable[[Call], str]) -> None:
    """Raise `GraphError` unless every argument is of the type that its operator takes, and sizes are as above.

    `describe`: a call's place in messages.
    """
    results = TypeChecker(describe).check(graph, graph.inputs)
    if not all(is_tensor(kind) for kind in results):
        raise GraphError("a graph returns something that is not a tensor")


def is_tensor(kind: Kind) -> bool:
    return kind is TENSOR or isinstance(kind, Input)


class TypeChecker:
    def __init__(self, describe: Callable[[Call], str]) -> None:
        self.describe = describe

    def check(self, graph: Graph, inputs: Sequence[Kind]) -> list[Kind]:
        """Return the kinds of the graph's outputs, for inputs of these kinds."""
        kinds: dict[str, Kind] = {f"%{i.name}": kind for i, kind in zip(graph.inputs, inputs, strict=True)}
        for number, call in enumerate(graph.calls):
            try:
                kinds[f"%{number}"] = self.find_kind(call, kinds)
            except (TypeError, ValueError, IndexError, ArithmeticError) as error:
                raise GraphError(f"{self.describe(call)} calls {call.operator}, {error}") from error
        return [find_value_kind(value, kinds) for value in graph.outputs]

    def find_kind(self, call: Call, kinds: Mapping[str, Kind]) -> Kind:
        """Return the kind of a call's result. Raises `TypeError` or `ValueError` for wrong arguments."""
        if call.graph is not None:
            return self.check(call.graph, [find_value_kind(value, kinds) for value in call.arguments])
        if call.operator == "result::item":
            return find_item(*(find_value_kind(value, kinds) for value in call.arguments))
        if call.operator.startswith("size::"):
            return compute_size(call, kinds)
        if call.operator == "aten::sym_size.int":
            return read_size(*(find_value_kind(value, kinds) for value in call.arguments))
        if call.operator.startswith("aten::"):
            return check_aten_call(call, kinds)
        for value in iterate_values([call.arguments, list((call.keywords or {}).values())]):
            if isinstance(value, str) and not is_tensor(find_value_kind(value, kinds)):
                raise TypeError("which takes tensors")
        return TENSOR


def find_value_kind(value: Any, kinds: Mapping[str, Kind]) -> Kind:
    """Return the kind of an argument; of a literal number, its size."""
    if isinstance(value, str):
        return TENSOR if value.startswith("@") else kinds[value]
    return sympy.Integer(value) if isinstance(value, int) and not isinstance(value, bool) else None


def find_item(results: Kind, position: Kind) -> Kind:
    """`result::item`: one of the results of a call, at a fixed position."""
    if not isinstance(position, sympy.Integer) or not (results is TENSORS or isinstance(results, list)):
        raise TypeError("which takes a call with several results and a fixed number")
    return results[int(position)] if isinstance(results, list) else TENSOR


def read_size(tensor: Kind, dimension: Kind) -> sympy.Expr:
    """`aten::sym_size.int`: a declared size of an input."""
    if not isinstance(tensor, Input) or not isinstance(dimension, sympy.Integer):
        raise TypeError("which takes an input of the graph and a fixed number: other sizes follow from those")
    size = tensor.shape[int(dimension)]
    return SYMBOLS[size] if isinstance(size, str) else sympy.Integer(size)


def compute_size(call: Call, kinds: Mapping[str, Kind]) -> sympy.Expr:
    """`size::*`: arithmetic of sizes."""
    values = [find_value_kind(value, kinds) for value in call.arguments]
    if not all(isinstance(value, sympy.Expr) for value in values):
        raise TypeError("which takes sizes and whole numbers")
    size = sympy.expand(SIZE_OPERATORS[call.operator](*values))
    if not size.is_polynomial(*SYMBOLS.values()):
        raise ValueError(f"whose result {size} is no sum of multiples of rows and positions, and no other sizes load")
    terms = sympy.Poly(size, *SYMBOLS.values()).terms()
    if any(max(powers) > 1 or not factor.is_Integer or abs(factor) > MAX_SIZE for powers, factor in terms):
        raise ValueError(
            f"whose result {str(size)[:100]} is no sum of multiples of rows and positions, and no other sizes load"
        )
    return size


def check_aten_call(call: Call, kinds: Mapping[str, Kind]) -> Kind:
    schema = find_operator(call.operator)._schema  # type: ignore[attr-defined]
    declared = {argument.name: str(argument.type) for argument in schema.arguments}
    if len(call.arguments) > len(declared) or not set(call.keywords or {}) <= set(declared):
        raise TypeError("which takes no such argument")
    given = {**dict(zip(declared, call.arguments, strict=False)), **(call.keywords or {})}
    for name, value in given.items():
        for item in iterate_values(value):
            if isinstance(item, str) and not takes(declared[name], find_value_kind(item, kinds)):
                raise TypeError(f"whose argument {name} is of another type")
    returned = [str(result.type) for result in schema.returns]
    if not all("Tensor" in name for name in returned):
        raise TypeError("which returns something other than tensors")
    return TENSOR if returned == ["Tensor"] else TENSORS


def takes(type_name: str, kind: Kind) -> bool:
    """Return whether an argument of one of torch's types can be of a kind. A size can stand for a tensor."""
    if is_tensor(kind):
        return "Tensor" in type_name
    if kind is TENSORS:
        return "List" in type_name and "Tensor" in type_name
    return isinstance(kind, sympy.Expr) and any(name in type_name for name in ("int", "number", "Tensor"))
