"""Build functions of torch from graphs: every operator is looked up in the list, nothing of a file runs as code."""

from __future__ import annotations

import base64
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor, fx, nn

from trainer.graph.checks import check_graph
from trainer.graph.files import Call, Constant, Graph, GraphError, Initialization, TracedArchitecture
from trainer.graph.operators import find_operator, find_schema


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
    check_graph(graph, allow_random=allow_random)
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
        if is_factory(call.operator):
            keywords["device"] = self.device
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
        """Return an argument from its JSON (see `trainer.graph.files`)."""
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


def is_factory(name: str) -> bool:
    """Return whether an operator makes a tensor from numbers alone, on the CPU unless a device is given."""
    if not name.startswith("aten::"):
        return False
    arguments = {argument.name: str(argument.type) for argument in find_schema(name).arguments}
    return "device" in arguments and not any("Tensor" in type_name for type_name in arguments.values())


def decode_special_value(kind: str, content: str) -> Any:
    if kind in ("dtype", "memory_format"):
        return getattr(torch, content)
    return float(content) if kind == "number" else content


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
