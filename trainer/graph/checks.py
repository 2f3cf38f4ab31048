"""Check a graph before it is built: its operators, what they pass to each other, random numbers, and writes."""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import torch

from trainer.graph.files import MAX_ITEMS, MAX_SIZE, SIZE_NAMES, Call, Graph, GraphError, Input, iterate_values
from trainer.graph.operators import (
    MAY_RETURN_ARGUMENT,
    NGRAM_MEMORY,
    RANDOM_OPERATORS,
    RUNNING_STATISTICS,
    UNCHECKED_ARGUMENTS,
    bind_arguments,
    find_schema,
    is_allowed,
    strip_variant,
)

# --- types of arguments -----------------------------------------------------------------------------------------------
# Check what the calls of a graph pass to each other: tensors, and sizes that depend on rows and positions only. A size
# is `a + b batch + c positions + d batch positions` with whole numbers a to d, and b, c, d are not negative. So no size
# depends on the values of a tensor, and none jumps or falls at certain numbers of rows or positions.


# --- sizes that depend on rows and positions --------------------------------------------------------------------------
# Sizes that depend on rows and positions: `a + b batch + c positions + d batch positions` with whole numbers a to d.
# Both numbers are at least 1. Arithmetic has no other results: what is no such sum raises `ValueError`.


class SizeSum(NamedTuple):
    """A size; the fields are a, b, c and d."""

    constant: int
    batch: int = 0
    positions: int = 0
    both: int = 0

    @property
    def is_constant(self) -> bool:
        return not any(self[1:])

    def describe(self) -> str:
        terms = zip(self, ("", *SIZE_NAMES, " ".join(SIZE_NAMES)), strict=True)
        return " + ".join(f"{factor} {name}".strip() for factor, name in terms if factor) or "0"


SIZES = dict(zip(SIZE_NAMES, (SizeSum(0, 1), SizeSum(0, 0, 1)), strict=True))


def compute_size(name: str, *values: SizeSum) -> SizeSum:
    """Return the result of an operator `size::*`. Raises `ValueError`, or `ZeroDivisionError`."""
    size = ARITHMETIC[name](*values)
    if size is None or any(abs(factor) > MAX_SIZE for factor in size):
        result = "" if size is None else f" {size.describe()}"
        raise ValueError(f"whose result{result} is no sum of multiples of rows and positions, and no other sizes load")
    if any(factor < 0 for factor in size[1:]):
        raise ValueError(f"whose result {size.describe()} falls when rows or positions grow, and no such sizes load")
    return size


def add(left: SizeSum, right: SizeSum) -> SizeSum:
    return SizeSum(*map(operator.add, left, right))


def subtract(left: SizeSum, right: SizeSum) -> SizeSum:
    return SizeSum(*map(operator.sub, left, right))


def negate(value: SizeSum) -> SizeSum:
    return SizeSum(*map(operator.neg, value))


def multiply(left: SizeSum, right: SizeSum) -> SizeSum | None:
    """Return the product; None if it has a square. The numbers of terms are sets: 1 is batch, 2 positions, 3 both."""
    product = [0] * len(left)
    for i, factor in enumerate(left):
        for j, other in enumerate(right):
            if factor and other and i & j:
                return None
            product[i | j] += factor * other
    return SizeSum(*product)


def divide(left: SizeSum, right: SizeSum) -> SizeSum | None:
    """Return the quotient, rounded down, if it is the same sum for all rows and positions."""
    if right.is_constant:
        quotient, remainders = zip(*(divmod(factor, right.constant) for factor in left), strict=True)
        return None if any(remainders[1:]) else SizeSum(*quotient)
    terms = [number for number, factor in enumerate(right) if factor]
    if len(terms) > 1:  # only a multiple of it has a quotient
        factor = left[terms[0]] // right[terms[0]]
        return SizeSum(factor) if left == multiply(SizeSum(factor), right) else None
    parts = [0] * len(left)
    for number, factor in enumerate(left):
        if factor % right[terms[0]] or (factor and number & terms[0] != terms[0]):
            return None
        parts[number & ~terms[0]] += factor // right[terms[0]]
    return SizeSum(*parts)


def take_remainder(left: SizeSum, right: SizeSum) -> SizeSum | None:
    quotient = divide(left, right)
    product = None if quotient is None else multiply(quotient, right)
    return None if product is None else subtract(left, product)


def take_larger(left: SizeSum, right: SizeSum) -> SizeSum | None:
    """Return the size that is never the smaller one; None if that depends on rows or positions."""
    for one, other in ((left, right), (right, left)):
        gap = subtract(one, other)
        if min(gap[1:]) >= 0 and sum(gap) >= 0:
            return one
    return None


def take_smaller(left: SizeSum, right: SizeSum) -> SizeSum | None:
    larger = take_larger(left, right)
    return None if larger is None else right if larger is left else left


ARITHMETIC: dict[str, Callable[..., SizeSum | None]] = {
    "size::add": add,
    "size::sub": subtract,
    "size::neg": negate,
    "size::mul": multiply,
    "size::floordiv": divide,
    "size::mod": take_remainder,
    "size::min": take_smaller,
    "size::max": take_larger,
}


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


RECURRENT_OPERATORS = ("aten::lstm", "aten::gru", "aten::rnn_tanh", "aten::rnn_relu")
"""They draw random numbers if they are called with dropout in training."""


def describe_call(call: Call) -> str:
    return call.module or "the model"


def check_graph(graph: Graph, *, allow_random: bool = True, describe: Callable[[Call], str] = describe_call) -> None:
    """Raise `GraphError` for a graph that may not run. `describe`: a call's place in messages."""
    check_operators(graph)
    check_argument_types(graph, describe)
    check_addresses(graph, describe)
    check_memories(graph, describe)
    if not allow_random:
        check_randomness(graph, describe)
    check_writes(graph, describe)


def check_operators(graph: Graph) -> None:
    """Raise `GraphError` if a call is not in the list."""
    for call in graph.iterate_calls():
        if call.graph is None and not is_allowed(call.operator):
            raise GraphError(f"the operator {call.operator} is not in the list")


def check_addresses(graph: Graph, describe: Callable[[Call], str]) -> None:
    """Raise `GraphError` if a call gives an argument by which torch could read foreign memory."""
    for call in graph.iterate_calls():
        name = UNCHECKED_ARGUMENTS.get(strip_variant(call.operator), "")
        if name and bind_arguments(call).get(name) is not None:
            raise GraphError(f"{describe(call)} calls {call.operator} with {name}, which torch does not check: omit it")


def check_memories(graph: Graph, describe: Callable[[Call], str]) -> None:
    """Raise `GraphError` unless memories are read for the tokens of the pass, which the trainer does before it."""
    for call in graph.iterate_calls():
        if call.operator != NGRAM_MEMORY:
            continue
        given = bind_arguments(call)
        orders = given["orders"] if isinstance(given["orders"], list) else [None]
        end_of_text = [] if given["end_of_text"] is None else [given["end_of_text"]]
        is_plain = all(type(number) is int for number in (*orders, given["hashes"], *end_of_text))
        if given["tokens"] != "%tokens" or not str(given["table"]).startswith("@") or not is_plain:
            raise GraphError(
                f"{describe(call)} calls {call.operator} with something other than the tokens of the pass, a parameter"
                " and numbers"
            )


def check_randomness(graph: Graph, describe: Callable[[Call], str]) -> None:
    """Raise `GraphError` if a call draws random numbers."""
    for call in graph.iterate_calls():
        if call.graph is None and is_random(call):
            raise GraphError(
                f"{describe(call)} draws random numbers ({call.operator}), which evaluation may not: do it only"
                " `if self.training`"
            )


def is_random(call: Call) -> bool:
    """Return whether a call draws random numbers. Dropout in evaluation does not."""
    base = strip_variant(call.operator)
    if base == "aten::scaled_dot_product_attention":
        return bind_arguments(call).get("dropout_p") not in (None, 0)
    if base in RECURRENT_OPERATORS:
        given = bind_arguments(call)
        return given.get("dropout") != 0 and given.get("train") is not False
    if "dropout" in base:
        return bind_arguments(call).get("train") is not False
    return base in RANDOM_OPERATORS


# --- writes -----------------------------------------------------------------------------------------------------------


def check_writes(
    graph: Graph, describe: Callable[[Call], str] = describe_call, inputs: Mapping[str, str | None] | None = None
) -> None:
    """Raise `GraphError` if a call writes to a stored tensor or an input, directly or through a view.

    A graph is a function: what it changes in place must be memory of the pass. `inputs`: the owners of a region's
    inputs.
    """
    # A value -> an input or a stored tensor that may own its memory; None: the pass owns it. One is enough to refuse a
    # write, and a value can have thousands.
    owners = dict(inputs if inputs is not None else {f"%{i.name}": i.name for i in graph.inputs})
    for number, call in enumerate(graph.calls):
        if call.graph is not None:
            passed = zip(call.graph.inputs, call.arguments, strict=True)
            check_writes(call.graph, describe, {f"%{i.name}": find_owner([value], owners) for i, value in passed})
            # A region may return its arguments: nothing that it returns is written to.
            owners[f"%{number}"] = "the result of a region"
            continue
        owner = find_owner(find_written(call), owners)
        if owner is not None:
            raise GraphError(
                f"{describe(call)} writes to {owner} ({call.operator}), and an architecture keeps no state:"
                " `clone()` what a pass changes"
            )
        owners[f"%{number}"] = find_owner(find_aliased(call), owners)


def find_owner(values: list[Any], owners: Mapping[str, str | None]) -> str | None:
    """Return an input or a stored tensor that may own the memory of some values; None if the pass owns all of it."""
    for value in iterate_values(values):
        if isinstance(value, str):
            owner = value[1:] if value.startswith("@") else owners[value]
            if owner is not None:
                return owner
    return None


def find_written(call: Call) -> list[Any]:
    """Return the arguments that a call writes to."""
    if not call.operator.startswith("aten::"):
        return []
    given = bind_arguments(call)
    names = [a.name for a in find_schema(call.operator).arguments if a.alias_info and a.alias_info.is_write]
    switch, *statistics = RUNNING_STATISTICS.get(strip_variant(call.operator), ("",))
    if switch and given.get(switch) is not False:
        names += statistics
    return [given[name] for name in names if name in given]


def find_aliased(call: Call) -> list[Any]:
    """Return the arguments whose memory a call's results may share."""
    if call.operator == "result::item":
        return [call.arguments[0]]
    if not call.operator.startswith(("aten::", "dailytrain::")):
        return []
    given, schema = bind_arguments(call), find_schema(call.operator)
    is_view = any(result.alias_info for result in schema.returns)
    names = [argument.name for argument in schema.arguments if is_view and argument.alias_info]
    names += MAY_RETURN_ARGUMENT.get(strip_variant(call.operator), ())
    return [given[name] for name in names if name in given]
