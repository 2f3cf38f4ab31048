"""Export the passes of an architecture as graphs: `torch.export` runs its Python once, on tensors without data."""

from __future__ import annotations

import base64
import logging
import math
import operator
import re
import sysconfig
import traceback
import warnings
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from unittest import mock

import torch
import torch.nn.functional as F
from torch import Tensor, fx, nn
from torch._dynamo.exc import UserError
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.fx.experimental.symbolic_shapes import ShapeEnv
from torch.utils._python_dispatch import _disable_current_modes

from trainer.graph.checks import check_graph
from trainer.graph.files import MAX_CONSTANT_BYTES, Call, Constant, Graph, GraphError, Input, Passes
from trainer.graph.operators import SIZE_OPERATORS, is_allowed
from trainer.models.base import LanguageModel

IGNORED_CALLS = ("_assert_tensor_metadata", "_assert_scalar", "_assert_async", "sym_constrain_range", "promote_types")
"""Calls that only check, and calls whose result is a constant."""

SIZE_FUNCTIONS = {function: name for name, function in SIZE_OPERATORS.items()}

PACKAGE = str(Path(__file__).parents[1])  # of the trainer
STANDARD_LIBRARY = sysconfig.get_path("stdlib")

NOT_LISTED = (
    ", which is not in the list of operators (trainer/graph/operators.py): compute it with others, or propose it"
)
NOT_STORED = (
    "uses a tensor that is neither a parameter nor a buffer (an attribute set without `register_buffer`, `.data`,"
    " torch.func): register it, and use `detach()` instead of `.data`"
)
FIXED_SIZE = (
    "turns the number of rows or positions into a fixed number: use `x.size(0)`, -1 or `unflatten` for sizes, and no"
    " `if`, `assert`, `range` or loop over rows"
)
NO_CONTROL_FLOW = "use `torch.where`, or a loop of fixed length"
NO_TRANSFORMS = "it is not an operator of tensors; write the computation without torch.vmap and torch.func"
OWN_GENERATOR = "uses a random generator of its own, and the seed is the run's: remove `generator=`"


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
    lines: dict[int, str] = field(default_factory=dict)  # source lines by the identity of a call

    def export_passes(self, model: LanguageModel, mode: FakeTensorMode, sequence_length: int) -> Passes:
        """Export features of `[batch, sequence_length]` tokens, and logits of `[batch, positions, width]` features.

        The model's tensors belong to `mode`.
        """
        batch, positions = torch.export.Dim("batch"), torch.export.Dim("positions")
        with mode:
            # Sizes 2 and up: torch treats 0 and 1 as constants.
            tokens = torch.zeros(3, sequence_length, dtype=torch.int64)
        features, result = self.export(Features(model), "tokens", tokens, {0: batch})
        check_features(result, sequence_length)
        with mode:
            example = torch.zeros(3, 5, result.size(-1))
        logits, _ = self.export(Logits(model), "features", example, {0: batch, 1: positions})
        for graph in (features, logits):
            check_graph(graph, allow_random=model.training, describe=self.describe_call)
        return Passes(features, logits)

    def export(self, module: nn.Module, name: str, example: Tensor, sizes: dict[int, Any]) -> tuple[Graph, Tensor]:
        """Export a module of one input; return its graph and its result without data.

        `sizes`: the input's dimensions of unknown size.
        """
        program = export_program(module, example, sizes)
        program.graph.eliminate_dead_code(is_impure_node=is_impure)
        signature = program.graph_signature
        if signature.buffers_to_mutate:
            changed = ", ".join(name.removeprefix("model.") for name in signature.buffers_to_mutate.values())
            raise TraceError(f"the forward pass writes to the buffer {changed}; an architecture keeps no state")
        stored = {**signature.inputs_to_parameters, **signature.inputs_to_buffers}
        references = {node: f"@{target.removeprefix('model.')}" for node, target in stored.items()}
        placeholders = {node.name: node for node in program.graph.find_nodes(op="placeholder")}
        for node in signature.inputs_to_lifted_custom_objs:
            raise TraceError(f"{describe_use(placeholders[node])} {OWN_GENERATOR}")
        for node, target in signature.inputs_to_lifted_tensor_constants.items():
            references[node] = self.add_constant(program.constants[target], describe_use(placeholders[node]))
        shape = tuple(str(sizes[d].__name__) if d in sizes else int(example.shape[d]) for d in range(example.dim()))
        inputs = (Input(name, str(example.dtype).removeprefix("torch."), shape),)
        (output,) = program.graph.find_nodes(op="output")
        return GraphExport(self, program.graph_module, references).build(inputs), output.args[0][0].meta["val"]

    def describe_call(self, call: Call) -> str:
        """Return the source line of a call, for messages."""
        return self.lines.get(id(call)) or call.module or "the model"

    def add_constant(self, tensor: Tensor, line: str) -> str:
        """Store a constant; return the reference to it. `line`: where it is used, for messages."""
        # The constructor and the passes run in modes that replace tensors by ones without data.
        with _disable_current_modes():
            if isinstance(tensor, FakeTensor) or torch._C._functorch.is_functorch_wrapped_tensor(tensor):
                raise TraceError(f"{line} {NOT_STORED}")
            data = base64.b64encode(tensor.detach().contiguous().flatten().view(torch.uint8).numpy().tobytes()).decode()
        constant = Constant(str(tensor.dtype).removeprefix("torch."), tuple(tensor.shape), data)
        for name, other in self.constants.items():
            if other == constant:
                return f"@{name}"
        name = f"constant_{len(self.constants)}"
        self.constants[name] = constant
        total = sum(c.number_of_bytes for c in self.constants.values())
        if total > MAX_CONSTANT_BYTES:
            raise TraceError(
                f"{line}: the architecture has {total:,} bytes of constant tensors, and {MAX_CONSTANT_BYTES:,} are"
                " allowed: compute tables with torch operators, or make them parameters"
            )
        return f"@{name}"


def check_features(result: Any, sequence_length: int) -> None:
    """Raise `TraceError` unless `features` returns a tensor `[batch, sequence_length, width]`."""
    if not isinstance(result, Tensor) or result.dim() != 3 or result.shape[1] != sequence_length:
        shape = list(result.shape) if isinstance(result, Tensor) else type(result).__name__
        raise TraceError(f"features returns {shape} instead of [rows, {sequence_length}, width]")
    if not isinstance(result.shape[2], int):
        raise TraceError("the width of the features depends on the number of rows")


def export_program(module: nn.Module, example: Tensor, sizes: dict[int, Any]) -> torch.export.ExportedProgram:
    """Call torch's exporter. Raises `TraceError` for what would be lost, and for sizes that became numbers."""
    with warnings.catch_warnings(record=True) as caught, refuse_untraceable(), record_fixed_sizes() as lines:
        warnings.simplefilter("always")
        try:
            program = torch.export.export(module, (example,), dynamic_shapes=(sizes,), strict=False)
        except UserError as error:
            if not any(lines):
                raise
            raise TraceError(f"{next(filter(None, lines))} {FIXED_SIZE}") from error
    for warning in caught:
        found = re.search(r"tensor attributes? (.*?) (was|were) assigned during export", str(warning.message))
        # nn.LSTM and nn.GRU list their weights again in each call.
        names = [name for name in found[1].split(", ") if "_flat_weights" not in name] if found else []
        if names:
            raise TraceError(
                f"the forward pass keeps {', '.join(names).replace('self.model.', 'self.')} for later calls: an"
                " architecture has no state, so pass tensors as arguments"
            )
    return program


@contextmanager
def record_fixed_sizes() -> Iterator[list[str]]:
    """Context manager: a list of the source lines at which torch replaces an unknown size by a number."""
    lines: list[str] = []
    replace = ShapeEnv._set_replacement

    def record(self: ShapeEnv, symbol: Any, value: Any, *args: Any, **kwargs: Any) -> Any:
        if value.is_number:
            lines.append(describe_stack("".join(traceback.format_stack())))
        return replace(self, symbol, value, *args, **kwargs)

    with mock.patch.object(ShapeEnv, "_set_replacement", record):
        yield lines


@contextmanager
def refuse_untraceable() -> Iterator[None]:
    """While a model is traced: raise `TraceError` for calls that leave no trace; keep source lines, silence logs."""
    seed = refuse("sets the random seed, which is the run's: remove it")
    replaced = [
        mock.patch.object(torch.autograd.Function, "apply", classmethod(refuse_own_gradient)),
        *(mock.patch.object(owner, "manual_seed", seed) for owner in (torch, torch.random)),
        mock.patch.object(torch, "compile", skip_compilation),
        mock.patch.object(nn.init, "_no_grad_trunc_normal_", draw_truncated_normal),
        mock.patch.object(F, "embedding_bag", reduce_bags),
        # torch keeps functions named `forward` only.
        mock.patch.object(fx.proxy.TracerBase, "_filter_traceback_frames", keep_entry_frames),
    ]
    logger = logging.getLogger("torch._subclasses.fake_tensor")
    with ExitStack() as stack:
        for patch in replaced:
            stack.enter_context(patch)
        stack.callback(setattr, logger, "disabled", logger.disabled)
        logger.disabled = True
        yield


def refuse(reason: str) -> Callable[..., Any]:
    def fail(*args: Any, **kwargs: Any) -> Any:
        raise TraceError(reason)

    return fail


def skip_compilation(model: Any = None, **_: Any) -> Any:
    """`torch.compile` while a model is traced: the trainer compiles the graph."""
    return model if model is not None else lambda function: function


def refuse_own_gradient(function: Any, *args: Any, **kwargs: Any) -> Any:
    name = f"{function.__module__}.{function.__qualname__}"
    if name == "torch.utils.checkpoint._NoopSaveInputs":  # in torch 2.11: without a gradient `checkpoint` only calls
        return function.forward(*args, **kwargs)
    if function.__module__.startswith("torch."):
        raise TraceError(f"{function.__name__} of torch cannot be held by a graph: {NO_CONTROL_FLOW}")
    raise TraceError(
        f"{function.__name__} is an autograd.Function, and a graph has no gradients of its own: write the forward"
        " computation only; for a straight-through gradient `x + (y - x).detach()`"
    )


def draw_truncated_normal(
    tensor: Tensor, mean: float, std: float, a: float, b: float, generator: torch.Generator | None = None
) -> Tensor:
    """`nn.init.trunc_normal_` by the inverse of the distribution. Torch's own draws until all numbers are in the range,
    a number of times that depends on them."""
    low, high = (math.erf((bound - mean) / (std * math.sqrt(2))) for bound in (a, b))
    with torch.no_grad():
        tensor.uniform_(low, high, generator=generator).erfinv_()
        return tensor.mul_(std * math.sqrt(2)).add_(mean).clamp_(a, b)


def reduce_bags(
    input: Tensor,
    weight: Tensor,
    offsets: Tensor | None = None,
    max_norm: float | None = None,
    norm_type: float = 2,
    scale_grad_by_freq: bool = False,
    mode: str = "mean",
    sparse: bool = False,
    per_sample_weights: Tensor | None = None,
    include_last_offset: bool = False,
    padding_idx: int | None = None,
) -> Tensor:
    """`F.embedding_bag` of bags of one length. Torch's own reads any memory at offsets that it does not check."""
    if input.dim() != 2 or offsets is not None or max_norm is not None or padding_idx is not None or scale_grad_by_freq:
        raise TraceError(
            "uses `embedding_bag` with offsets, a norm, frequencies or a padding index: pass indices [bags, length]"
        )
    rows = F.embedding(input, weight)
    if per_sample_weights is not None:
        rows = rows * per_sample_weights[..., None]
    if mode == "max":
        return rows.max(1).values
    return rows.sum(1) if mode == "sum" else rows.mean(1)


def keep_entry_frames(_tracer: Any, summary: traceback.StackSummary) -> traceback.StackSummary:
    return traceback.StackSummary.from_list([frame for frame in summary if is_entry_file(frame.filename)])


def is_impure(node: fx.Node) -> bool:
    """Return whether a call must stay although its result is not used: it writes, or a region with it does."""
    if isinstance(node.target, torch._ops.HigherOrderOperator):
        regions = [getattr(node.graph.owning_module, str(a.target), None) for a in node.args if is_attribute(a)]
        return any(is_impure(inner) for region in regions if region is not None for inner in region.graph.nodes)
    return bool(node.is_impure())


def is_attribute(value: Any) -> bool:
    return isinstance(value, fx.Node) and value.op == "get_attr"


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
            self.append(node, SIZE_FUNCTIONS[target], node.args, node.kwargs)
        elif isinstance(target, torch._ops.OpOverload):
            name = target.name()
            if name.partition("::")[2].partition(".")[0] in IGNORED_CALLS:
                return
            if not is_allowed(name):
                from trainer.graph.advice import find_advice

                advice = find_advice(name)
                raise TraceError(f"{describe_line(node)} calls {name}" + (f": {advice}" if advice else NOT_LISTED))
            if node.kwargs.get("generator") is not None:
                raise TraceError(f"{describe_line(node)} {OWN_GENERATOR}")
            self.append(node, name, node.args, node.kwargs)
        else:
            called = getattr(target, "__name__", str(target))
            # Comparisons of sizes that depend on values come from `nonzero` and the like.
            from trainer.graph.advice import find_advice

            reason = find_advice("nonzero") if hasattr(operator, called) else NO_TRANSFORMS
            raise TraceError(f"{describe_line(node)} calls {called}: {reason}")

    def add_region(self, node: fx.Node) -> None:
        name = str(node.target)
        if name == "wrap_with_set_grad_enabled":
            is_enabled, inner, *operands = node.args
            region = "region::no_grad"
        elif name == "wrap_with_autocast":
            _device, _dtype, is_enabled, _cache, inner, *operands = node.args
            region = "region::no_autocast"
        else:
            raise TraceError(f"{describe_line(node)} calls {name}, which graphs do not support: {NO_CONTROL_FLOW}")
        assert isinstance(inner, fx.Node)
        module = getattr(self.module, str(inner.target))
        if is_enabled:
            first = next((each for each in module.graph.nodes if each.op == "call_function"), node)
            raise TraceError(
                f"{describe_line(first)} is in a region that turns gradients or autocast on, and regions can only turn"
                " them off: the run's precision decides"
            )
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
        self.add(node, Call(region, tuple(passed), None, find_module(node), graph))

    def append(self, node: fx.Node, name: str, arguments: tuple[Any, ...], keywords: dict[str, Any]) -> None:
        encoded = tuple(self.encode(value, node) for value in arguments)
        kept = {key: self.encode(value, node) for key, value in keywords.items() if key != "pin_memory"}
        self.add(node, Call(name, encoded, kept or None, find_module(node)))

    def add(self, node: fx.Node, call: Call) -> None:
        self.references[node.name] = f"%{len(self.calls)}"
        self.calls.append(call)
        self.exporter.lines[id(call)] = describe_line(node)

    def encode(self, value: Any, node: fx.Node) -> Any:
        """Return an argument as JSON (see `trainer.graph.files`)."""
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


def describe_use(placeholder: fx.Node) -> str:
    """Return the source line of the first call that uses an input."""
    return next((describe_line(user) for user in placeholder.users), "the model")


def is_entry_file(path: str) -> bool:
    """Return whether a line of this file can be the architecture's: it is not torch's, Python's or the tracer's."""
    if path.startswith(PACKAGE):
        return path.startswith(f"{PACKAGE}/models/")
    return not (path.startswith(("<", STANDARD_LIBRARY)) or "/site-packages/" in path)


def describe_stack(stack: str) -> str:
    """Return the innermost line of a printed stack that is in the architecture's file."""
    lines = [match for match in iterate_stack(stack) if is_entry_file(match[0])]
    if not lines:
        return ""
    path, number, source = lines[-1]
    return f"{path.rpartition('/')[2]}, line {number}" + (f" (`{source}`)" if source else "")


def iterate_stack(stack: str) -> Iterator[tuple[str, str, str]]:
    """Yield path, line number and source line of the entries of a printed stack."""
    for match in re.finditer(r'File "([^"]+)", line (\d+), in [^\n]*(?:\n\s+([^\n]*))?', stack):
        yield match[1], match[2], (match[3] or "").strip()
