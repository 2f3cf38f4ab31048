"""Build functions of torch from graphs: every operator is looked up in the list, nothing of a file runs as code."""

from __future__ import annotations

import base64
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor, fx, nn

from trainer.graph.argument_types import check_argument_types
from trainer.graph.functions import find_operator
from trainer.graph.operators import RANDOM_OPERATORS, is_allowed, strip_variant
from trainer.graph.schema import Call, Constant, Graph, GraphError, Initialization, TracedArchitecture

RECURRENT_OPERATORS = ("aten::lstm", "aten::gru", "aten::rnn_tanh", "aten::rnn_relu")
"""They draw random numbers if they are called with dropout in training."""


class Region(nn.Module):
    """A graph that runs under a condition: without gradients, or without autocast."""

    def __init__(self, condition: str, function: GraphFunction) -> None:
        super().__init__()
        self.condition = condition
        self.function = function

    def forward(self, device: torch.device, *arguments: Any) -> tuple[Any, ...]:
        inputs, stored = arguments[: self.function.input_count], arguments[self.function.input_count :]
        with self.enter_condition(device):
            return tuple(self.function.module(device, *inputs, *stored))

    def enter_condition(self, device: torch.device) -> AbstractContextManager[object]:
        if self.condition == "region::no_grad":
            return torch.no_grad()
        if device.type == "meta":  # has no autocast
            return nullcontext()
        return torch.autocast(device.type, enabled=False)


class GraphFunction:
    """A graph as a function of a device, its inputs and its stored tensors.

    `module(device, *inputs, *stored)` returns the outputs; `stored_names` says which stored tensors, in which order.
    """

    def __init__(self, graph: Graph, module: fx.GraphModule, stored_names: Sequence[str]) -> None:
        self.graph = graph
        self.module = module
        self.stored_names = tuple(stored_names)
        self.input_count = len(graph.inputs)

    def run(self, device: torch.device, inputs: Sequence[Tensor], stored: Mapping[str, Tensor]) -> tuple[Any, ...]:
        return tuple(self.module(device, *inputs, *(stored[name] for name in self.stored_names)))


def build_function(graph: Graph, *, allow_random: bool = True) -> GraphFunction:
    """Return a graph as a function. Raises `GraphError` for operators and arguments that are not allowed."""
    check_operators(graph, allow_random)
    check_argument_types(graph, describe_call)
    check_writes(graph)
    return translate(graph)


def translate(graph: Graph) -> GraphFunction:
    """Return a checked graph, or a region of one, as a function."""
    names = graph.list_stored_names()
    return GraphFunction(graph, GraphBuilder(graph, names).build(), names)


class GraphBuilder:
    """Translates a graph to `torch.fx`, which compiles it to a function."""

    def __init__(self, graph: Graph, stored_names: Sequence[str]) -> None:
        self.source = graph
        self.fx_graph = fx.Graph()
        self.regions = nn.Module()
        self.device = self.fx_graph.placeholder("device")
        self.values: dict[str, Any] = {}
        for number, declared in enumerate(graph.inputs):
            self.values[f"%{declared.name}"] = self.fx_graph.placeholder(f"input_{number}")
        for number, name in enumerate(stored_names):
            self.values[f"@{name}"] = self.fx_graph.placeholder(f"stored_{number}")

    def build(self) -> fx.GraphModule:
        for number, call in enumerate(self.source.calls):
            self.values[f"%{number}"] = self.add_region(number, call) if call.graph is not None else self.add(call)
        self.fx_graph.output(tuple(self.decode(value) for value in self.source.outputs))
        return fx.GraphModule(self.regions, self.fx_graph)

    def add(self, call: Call) -> fx.Node:
        arguments = tuple(self.decode(value) for value in call.arguments)
        keywords = {name: self.decode(value) for name, value in (call.keywords or {}).items()}
        node = self.fx_graph.call_function(find_operator(call.operator), arguments, keywords)
        node.meta["module"] = call.module
        return node

    def add_region(self, number: int, call: Call) -> fx.Node:
        assert call.graph is not None
        function = translate(call.graph)
        name = f"region_{number}"
        setattr(self.regions, name, Region(call.operator, function))
        stored = tuple(self.values[f"@{name}"] for name in function.stored_names)
        arguments = tuple(self.decode(value) for value in call.arguments)
        node = self.fx_graph.call_module(name, (self.device, *arguments, *stored))
        node.meta["module"] = call.module
        return node

    def decode(self, value: Any) -> Any:
        """Return an argument from its JSON (see `trainer.graph.schema`)."""
        if isinstance(value, str):
            if value not in self.values:
                raise GraphError(f"{value} is not known here")
            return self.values[value]
        if isinstance(value, list | tuple):
            return [self.decode(item) for item in value]
        if isinstance(value, Mapping):
            ((kind, content),) = value.items()
            return self.device if kind == "device" else decode_special_value(kind, content)
        return value


def decode_special_value(kind: str, content: str) -> Any:
    if kind in ("dtype", "memory_format"):
        return getattr(torch, content)
    return float(content) if kind == "number" else content


def describe_call(call: Call) -> str:
    return call.module or "the model"


def check_operators(graph: Graph, allow_random: bool, describe: Callable[[Call], str] = describe_call) -> None:
    """Raise `GraphError` if a call is not in the list, or draws random numbers where it may not."""
    for call in graph.iterate_calls():
        if call.graph is not None:
            continue
        if not is_allowed(call.operator):
            raise GraphError(f"the operator {call.operator} is not in the list")
        if not allow_random and is_random(call):
            raise GraphError(
                f"{describe(call)} draws random numbers ({call.operator}), which evaluation may not: do it only"
                " `if self.training`"
            )


def is_random(call: Call) -> bool:
    """Return whether a call draws random numbers. Dropout in evaluation (its last argument is false) does not."""
    base = strip_variant(call.operator)
    if base == "aten::scaled_dot_product_attention":
        return find_argument(call, "dropout_p") not in (None, 0)
    if base in RECURRENT_OPERATORS:
        return find_argument(call, "dropout") != 0 and find_argument(call, "train") is not False
    if base not in RANDOM_OPERATORS:
        return False
    return not ("dropout" in call.operator and call.arguments and call.arguments[-1] is False)


def find_argument(call: Call, name: str) -> Any:
    """Return an argument of a call by its name, positional or not; None if it is not given."""
    schema = find_operator(call.operator)._schema  # type: ignore[attr-defined]
    position = [argument.name for argument in schema.arguments].index(name)
    return call.arguments[position] if position < len(call.arguments) else (call.keywords or {}).get(name)


# --- writes -----------------------------------------------------------------------------------------------------------


def check_writes(
    graph: Graph, describe: Callable[[Call], str] = describe_call, owned: frozenset[str] = frozenset()
) -> None:
    """Raise `GraphError` if a call writes to a stored tensor or an input, directly or through a view.

    A graph is a function: what it changes in place must be a tensor of its own. `describe`: a call's place in messages.
    `owned`: inputs of a region that are the outer graph's own.
    """
    owners = {name: f"own {name}" for name in owned}  # a value -> what owns its memory
    for number, call in enumerate(graph.calls):
        name = f"%{number}"
        if call.graph is not None:
            passed = zip(call.graph.inputs, call.arguments, strict=True)
            own = (f"%{i.name}" for i, value in passed if str(owners.get(value)).startswith("own "))
            check_writes(call.graph, describe, frozenset(own))
            # A region may return its arguments: nothing that it returns is written to.
            owners[name] = "a region"
            continue
        for written in find_written(call):
            owner = owners.get(written, written)
            if not owner.startswith("own "):
                raise GraphError(
                    f"{describe(call)} writes to {owner.lstrip('%@')} ({call.operator}), and an"
                    " architecture keeps no state: `clone()` what a pass changes"
                )
        owners[name] = find_owner(call, owners) or f"own {number}"


def find_written(call: Call) -> list[str]:
    """Return the references that a call writes to."""
    if not call.operator.startswith("aten::"):
        return []
    schema = find_operator(call.operator)._schema  # type: ignore[attr-defined]
    written: list[Any] = []
    for position, argument in enumerate(schema.arguments):
        if argument.alias_info is not None and argument.alias_info.is_write:
            value = (
                call.arguments[position] if position < len(call.arguments) else (call.keywords or {}).get(argument.name)
            )
            written += value if isinstance(value, list) else [value]
    return [value for value in written if isinstance(value, str)]


def find_owner(call: Call, owners: Mapping[str, str]) -> str | None:
    """Return what owns the memory of a call's result, None if the result is new memory.

    Operators that may return their argument (views, `to`, `dropout`) count as views of the first.
    """
    if call.operator.startswith("size::"):
        return None
    if call.operator.startswith("aten::"):
        returns = find_operator(call.operator)._schema.returns  # type: ignore[attr-defined]
        is_view = any(r.alias_info is not None for r in returns) or "dropout" in call.operator
        if not is_view:
            return None
    elif call.operator != "result::item":
        return None
    first = call.arguments[0] if call.arguments else None
    first = first[0] if isinstance(first, list) and first else first
    return owners.get(first, first) if isinstance(first, str) else None


def build_constants(initialization: Initialization) -> dict[str, Tensor]:
    """Return the constant tensors by name."""
    return {name: decode_constant(name, constant) for name, constant in initialization.constants.items()}


def decode_constant(name: str, constant: Constant) -> Tensor:
    dtype = getattr(torch, constant.dtype)
    data = bytearray(base64.b64decode(constant.data, validate=True))
    try:
        flat = torch.frombuffer(data, dtype=dtype) if data else torch.empty(0, dtype=dtype)
        return flat.clone().reshape(constant.shape)
    except (RuntimeError, ValueError) as error:
        raise GraphError(f"the constant {name} does not have the bytes of {constant.shape}") from error


def check_passes(traced: TracedArchitecture) -> None:
    """Raise `GraphError` unless the graphs can be built: they write to nothing stored, and evaluation is not random."""
    for passes, allow_random in ((traced.training, True), (traced.evaluation, False)):
        for graph in (passes.features, passes.logits):
            build_function(graph, allow_random=allow_random)
