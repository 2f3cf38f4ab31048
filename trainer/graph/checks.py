"""Check a graph before it is built: its operators, what they pass to each other, random numbers, and writes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from trainer.graph.argument_types import check_argument_types
from trainer.graph.operator_functions import NGRAM_MEMORY, bind_arguments, find_schema
from trainer.graph.operators import (
    MAY_RETURN_ARGUMENT,
    RANDOM_OPERATORS,
    RUNNING_STATISTICS,
    UNCHECKED_ARGUMENTS,
    is_allowed,
    strip_variant,
)
from trainer.graph.schema import Call, Graph, GraphError, iterate_values

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
