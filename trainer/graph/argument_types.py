"""Check what the calls of a graph pass to each other: tensors, and sizes that depend on rows and positions only.

A size is `a + b batch + c positions + d batch positions` with whole numbers a to d, and b, c, d are not negative. So no
size depends on the values of a tensor, and none jumps or falls at certain numbers of rows or positions.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from trainer.graph.operator_functions import bind_arguments, find_schema
from trainer.graph.schema import MAX_ITEMS, Call, Graph, GraphError, Input, iterate_values
from trainer.graph.sizes import SIZES, SizeSum, compute_size

TENSOR, TENSORS = "a tensor", "several tensors"

ValueType = Any
"""What a reference stands for: TENSOR, TENSORS, an `Input` (a tensor of declared shape), a size as a `SizeSum`,
or a list of types (results of a region)."""

ENUMERATIONS = ("ScalarType", "MemoryFormat", "Layout", "Device", "Generator", "str")
"""Types of arguments that no number stands for. Torch takes any whole number for the first three, and can crash."""
SPECIAL_TYPES = {
    "dtype": ("ScalarType",),
    "memory_format": ("MemoryFormat",),
    "device": ("Device",),
    "text": ("str",),
    "number": ("float", "number", "Tensor"),
}

GROWING_ARGUMENTS = frozenset(
    (
        *(f"List[int] {name}" for name in ("size", "shape", "sizes", "repeats", "dims", "pad")),
        *("number end", "Optional[int] end", "int repeats", "int length", "int n", "int m"),
        *(f"number {name}" for name in ("other", "value", "fill_value", "self", "exponent")),
    )
)
"""Arguments that may depend on rows and positions: the result does not get smaller when they grow."""

COUNTS_OF_RESULTS = ("sections", "chunks")
"""Arguments that say how many tensors an operator returns."""


def check_argument_types(graph: Graph, describe: Callable[[Call], str]) -> None:
    """Raise `GraphError` unless every argument is of the type that its operator takes, and sizes are as above.

    `describe`: a call's place in messages.
    """
    results = TypeChecker(describe).check(graph, graph.inputs)
    if not all(is_tensor(value_type) for value_type in results):
        raise GraphError("a graph returns something that is not a tensor")


def is_tensor(value_type: ValueType) -> bool:
    return value_type is TENSOR or isinstance(value_type, Input)


def is_number(value_type: ValueType) -> bool:
    return isinstance(value_type, SizeSum) and value_type.is_constant


class TypeChecker:
    def __init__(self, describe: Callable[[Call], str]) -> None:
        self.describe = describe

    def check(self, graph: Graph, inputs: Sequence[ValueType]) -> list[ValueType]:
        """Return the types of the graph's outputs, for inputs of these types."""
        types: dict[str, ValueType] = {
            f"%{i.name}": value_type for i, value_type in zip(graph.inputs, inputs, strict=True)
        }
        for number, call in enumerate(graph.calls):
            try:
                types[f"%{number}"] = self.find_call_type(call, types)
            except (TypeError, ValueError, IndexError, ArithmeticError) as error:
                raise GraphError(f"{self.describe(call)} calls {call.operator}, {error}") from error
        return [find_value_type(value, types) for value in graph.outputs]

    def find_call_type(self, call: Call, types: Mapping[str, ValueType]) -> ValueType:
        """Return the type of a call's result. Raises `TypeError` or `ValueError` for wrong arguments."""
        if call.graph is not None:
            return self.check(call.graph, [find_value_type(value, types) for value in call.arguments])
        given = bind_arguments(call)
        if call.operator.startswith(("size::", "result::")) or call.operator == "aten::sym_size.int":
            values = [find_value_type(value, types) for value in given.values()]
            if call.operator == "result::item":
                return find_item(*values)
            if call.operator == "aten::sym_size.int":
                return read_size(*values)
            if not all(isinstance(value, SizeSum) for value in values):
                raise TypeError("which takes sizes and whole numbers")
            return compute_size(call.operator, *values)
        return check_call(find_schema(call.operator), given, types)


def find_value_type(value: Any, types: Mapping[str, ValueType]) -> ValueType:
    """Return the type of an argument; of a literal number, its size."""
    if isinstance(value, str):
        return TENSOR if value.startswith("@") else types[value]
    return SizeSum(value) if isinstance(value, int) and not isinstance(value, bool) else None


def find_item(results: ValueType, position: ValueType) -> ValueType:
    """`result::item`: one of the results of a call, at a fixed position."""
    if not is_number(position) or not (results is TENSORS or isinstance(results, list)):
        raise TypeError("which takes a call with several results and a fixed number")
    return results[position.constant] if isinstance(results, list) else TENSOR


def read_size(tensor: ValueType, dimension: ValueType) -> SizeSum:
    """`aten::sym_size.int`: a declared size of an input."""
    if not isinstance(tensor, Input) or not is_number(dimension):
        raise TypeError("which takes an input of the graph and a fixed number: other sizes follow from those")
    size = tensor.shape[dimension.constant]
    return SIZES[size] if isinstance(size, str) else SizeSum(size)


def check_call(schema: torch.FunctionSchema, given: Mapping[str, Any], types: Mapping[str, ValueType]) -> ValueType:
    """Return the type of the result of a call with these arguments."""
    declared = {argument.name: str(argument.real_type) for argument in schema.arguments}
    for name, value in given.items():
        count = find_value_type(value, types) if name in COUNTS_OF_RESULTS else None
        if is_number(count) and count.constant > MAX_ITEMS:
            raise ValueError(f"which returns at most {MAX_ITEMS:,} tensors")
        for item in iterate_values(value):
            is_fitting = (
                takes(declared[name], name, find_value_type(item, types))
                if isinstance(item, str)
                else takes_literal(declared[name], item)
            )
            if not is_fitting:
                raise TypeError(f"whose argument {name} is of another type, or cannot depend on rows and positions")
    returned = [str(result.type) for result in schema.returns]
    if not returned or not all("Tensor" in name for name in returned):
        raise TypeError("which returns something other than tensors")
    return TENSOR if returned == ["Tensor"] else TENSORS


def takes_literal(type_name: str, value: Any) -> bool:
    """Return whether an argument of one of torch's types can be this value. Torch converts and checks numbers."""
    if isinstance(value, Mapping):
        return any(name in type_name for name in SPECIAL_TYPES[next(iter(value))])
    return value is None or not any(name in type_name for name in ENUMERATIONS)


def takes(type_name: str, name: str, value_type: ValueType) -> bool:
    """Return whether an argument of one of torch's types can be of a type of values. A size can stand for a tensor."""
    if is_tensor(value_type):
        return "Tensor" in type_name
    if value_type is TENSORS:
        return "List" in type_name and "Tensor" in type_name
    if not isinstance(value_type, SizeSum):
        return False
    is_growing = "Tensor" in type_name or f"{type_name} {name}" in GROWING_ARGUMENTS
    return is_growing or (value_type.is_constant and any(each in type_name for each in ("int", "number")))
