"""Export the passes of an architecture as graphs: `torch.export` runs its Python once, on tensors without data."""

from __future__ import annotations

import base64
import operator
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, fx, nn
from torch._subclasses.fake_tensor import FakeTensorMode

from trainer.graph.operators import is_allowed
from trainer.graph.schema import Call, Constant, Graph, GraphError, Input, Passes
from trainer.models.base import LanguageModel

IGNORED_CALLS = ("_assert_tensor_metadata", "_assert_scalar", "_assert_async", "sym_constrain_range", "promote_types")
"""Calls that only check, and calls whose result is a constant."""

SIZE_FUNCTIONS: dict[Any, str] = {
    **{getattr(operator, name): name for name in ("add", "sub", "mul", "floordiv", "mod", "neg")},
    torch.sym_min: "min",
    torch.sym_max: "max",
}

MAX_CONSTANT_BYTES = 64_000
"""Of all constants of an architecture. Larger tables are parameters or buffers, computed by the constructor."""


OWN_FOLDERS = ("/torch/", "/trainer/graph/")
"""Of lines that are not an architecture's."""


class TraceError(GraphError):
    """An architecture cannot be traced. The message names the line, the construct and what to write instead."""


class Features(nn.Module):
    def __init__(self, model: LanguageModel) -> None:
        super().__init__()
        self.model = model

    def forward(self, tokens: Tensor) -> Tensor:
        return self.model.features(tokens)


class Logits(nn.Module):
    def __init__(self, model: LanguageModel) -> None:
        super().__init__()
        self.model = model

    def forward(self, features: Tensor) -> Tensor:
        return self.model.logits(features)


@dataclass
class Exporter:
    """Turns torch's exported programs into graphs. All graphs of an architecture share its constants."""

    constants: dict[str, Constant] = field(default_factory=dict)

    def export_passes(self, model: LanguageModel, mode: FakeTensorMode, sequence_length: int) -> Passes:
        """Export features of `[batch, sequence_length]` tokens, and logits of `[batch, positions, width]` features.

        The model's tensors belong to `mode`.
        """
        batch, positions = torch.export.Dim("batch"), torch.export.Dim("positions")
        with mode:
            # Sizes 2 and up: torch treats 0 and 1 as constants.
            tokens = torch.zeros(3, sequence_length, dtype=torch.int64)
            with torch.no_grad():
                width = model.features(tokens).size(-1)
            features = torch.zeros(3, 5, width)
        return Passes(
            self.export(Features(model), "tokens", tokens, {0: batch}),
            self.export(Logits(model), "features", features, {0: batch, 1: positions}),
        )

    def export(self, module: nn.Module, name: str, example: Tensor, sizes: dict[int, Any]) -> Graph:
        """Export a module of one input. `sizes`: its dimensions of unknown size."""
        program = torch.export.export(module, (example,), dynamic_shapes=(sizes,), strict=False)
        program.graph.eliminate_dead_code()
        signature = program.graph_signature
        if signature.buffers_to_mutate:
            changed = ", ".join(name.removeprefix("model.") for name in signature.buffers_to_mutate.values())
            raise TraceError(f"the forward pass writes to the buffer {changed}; an architecture keeps no state")
        stored = {**signature.inputs_to_parameters, **signature.inputs_to_buffers}
        references = {node: f"@{target.removeprefix('model.')}" for node, target in stored.items()}
        for node, target in signature.inputs_to_lifted_tensor_constants.items():
            references[node] = self.add_constant(program.constants[target])
        shape = tuple(str(sizes[d].__name__) if d in sizes else int(example.shape[d]) for d in range(example.dim()))
        inputs = (Input(name, str(example.dtype).removeprefix("torch."), shape),)
        return GraphExport(self, program.graph_module, references).build(inputs)

    def add_constant(self, tensor: Tensor) -> str:
        """Store a constant; return the reference to it."""
        data = base64.b64encode(tensor.detach().contiguous().flatten().view(torch.uint8).numpy().tobytes()).decode()
        constant = Constant(str(tensor.dtype).removeprefix("torch."), tuple(tensor.shape), data)
        for name, other in self.constants.items():
            if other == constant:
                return f"@{name}"
        name = f"constant_{len(self.constants)}"
        self.constants[name] = constant
        total = sum(len(base64.b64decode(c.data)) for c in self.constants.values())
        if total > MAX_CONSTANT_BYTES:
            raise TraceError(
                f"the architecture has {total:,} bytes of constant tensors, and {MAX_CONSTANT_BYTES:,} are allowed: "
                "compute tables with torch operators, or make them parameters"
            )
        return f"@{name}"


class GraphExport:
    """The conversion of one exported graph, or of a region of it."""

    def __init__(self, exporter: Exporter, module: fx.GraphModule, references: dict[str, str]) -> None:
        """`references`: placeholders of stored tensors -> references."""
        self.exporter = exporter
        self.module = module
        self.references: dict[str, Any] = dict(references)
        self.calls: list[Call] = []

    def build(self, inputs: tuple[Input, ...]) -> Graph:
        own = [node for node in self.module.graph.find_nodes(op="placeholder") if node.name not in self.references]
        for node, declared in zip(own, inputs, strict=True):
            self.references[node.name] = f"%{declared.name}"
        for node in self.module.graph.nodes:
            if node.op == "call_function":
                self.add_call(node)
        (output,) = self.module.graph.find_nodes(op="output")
        return Graph(inputs, tuple(self.calls), tuple(self.encode(value, output) for value in output.args[0]))

    def add_call(self, node: fx.Node) -> None:
        target = node.target
        if isinstance(target, torch._ops.HigherOrderOperator):
            self.add_region(node)
        elif target is operator.getitem:
            self.append(node, "result::item", node.args, {})
        elif target in SIZE_FUNCTIONS:
            self.append(node, f"size::{SIZE_FUNCTIONS[target]}", node.args, node.kwargs)
        elif isinstance(target, torch._ops.OpOverload):
            name = target.name()
            if name.partition("::")[2].partition(".")[0] in IGNORED_CALLS:
                return
            if not is_allowed(name):
                raise TraceError(f"{describe_line(node)} calls {name}, which is not in the list of operators")
            self.append(node, name, node.args, node.kwargs)
        else:
            raise TraceError(f"{describe_line(node)} calls {target}, which is not an operator of tensors")

    def add_region(self, node: fx.Node) -> None:
        name = str(node.target)
        if name == "wrap_with_set_grad_enabled":
            is_enabled, inner, *operands = node.args
            region = "region::no_grad"
        elif name == "wrap_with_autocast":
            _device, _dtype, is_enabled, _cache, inner, *operands = node.args
            region = "region::no_autocast"
        else:
            raise TraceError(
                f"{describe_line(node)} calls {name}, which graphs do not support: write a loop of fixed length"
            )
        if is_enabled:
            raise TraceError(f"{describe_line(node)} turns gradients or autocast on; regions can only turn them off")
        assert isinstance(inner, fx.Node)
        module = getattr(self.module, str(inner.target))
        names = [placeholder.name for placeholder in module.graph.find_nodes(op="placeholder")]
        references: dict[str, str] = {}
        passed: list[Any] = []
        for placeholder, operand in zip(names, operands, strict=True):
            reference = self.encode(operand, node)
            if isinstance(reference, str) and reference.startswith("@"):
                references[placeholder] = reference
            else:
                passed.append(reference)
        inputs = tuple(Input(f"input_{number}") for number in range(len(passed)))
        graph = GraphExport(self.exporter, module, references).build(inputs)
        self.references[node.name] = f"%{len(self.calls)}"
        self.calls.append(Call(region, tuple(passed), None, find_module(node), graph))

    def append(self, node: fx.Node, name: str, arguments: tuple[Any, ...], keywords: dict[str, Any]) -> None:
        encoded = tuple(self.encode(value, node) for value in arguments)
        kept = {key: self.encode(value, node) for key, value in keywords.items() if key != "pin_memory"}
        self.references[node.name] = f"%{len(self.calls)}"
        self.calls.append(Call(name, encoded, kept or None, find_module(node)))

    def encode(self, value: Any, node: fx.Node) -> Any:
        """Return an argument as JSON (see `trainer.graph.schema`)."""
        if isinstance(value, fx.Node):
            return self.references[value.name]
        if isinstance(value, list | tuple):
            return [self.encode(item, node) for item in value]
        return encode_value(value, lambda: describe_line(node))


def encode_value(value: Any, describe: Callable[[], str]) -> Any:
    """Return a plain value as JSON."""
    if value is None or isinstance(value, bool | int):
        return value
    if isinstance(value, float):
        return value if value - value == 0 else {"number": str(value)}
    if isinstance(value, str):
        return {"text": value}
    if isinstance(value, torch.dtype):
        return {"dtype": str(value).removeprefix("torch.")}
    if isinstance(value, torch.memory_format):
        return {"memory_format": str(value).removeprefix("torch.")}
    if isinstance(value, torch.device):
        return {"device": True}
    if isinstance(value, torch.layout) and value is torch.strided:
        return None
    raise TraceError(f"{describe()} passes {value!r} to an operator, which a graph cannot hold")


def find_module(node: fx.Node) -> str:
    """Return the path of the module that made a call: `blocks.0.attention`."""
    stack = node.meta.get("nn_module_stack")
    path = str(list(stack.values())[-1][0]) if stack else ""
    return re.sub(r"\[(\d+)\]", r".\1", path).removeprefix("model").removeprefix(".")


def describe_line(node: fx.Node) -> str:
    """Return the source line of a call for a message: `gpt.py, line 214 (x = x.sort())`."""
    return describe_stack(node.meta.get("stack_trace") or "") or f"the operator {node.name}"


def describe_stack(stack: str) -> str:
    """Return the innermost line of a printed stack that is outside torch."""
    lines = [match for match in iterate_stack(stack) if not any(part in match[0] for part in OWN_FOLDERS)]
    if not lines:
        return ""
    path, number, source = lines[-1]
    return f"{path.rpartition('/')[2]}, line {number}" + (f" (`{source}`)" if source else "")


def iterate_stack(stack: str) -> Iterator[tuple[str, str, str]]:
    """Yield path, line number and source line of the entries of a printed stack."""
    for match in re.finditer(r'File "([^"]+)", line (\d+), in [^\n]*(?:\n\s+([^\n]*))?', stack):
        yield match[1], match[2], (match[3] or "").strip()
