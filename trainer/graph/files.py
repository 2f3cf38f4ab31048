"""The four files of a traced architecture: how they are read, checked and written. No torch.

`trainer.graph.files` describes their JSON.
"""

from __future__ import annotations

import base64
import hashlib
import json
import lzma
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from trainer.errors import UserError
from trainer.protocol.files import GRAPH_FILES

# --- graphs of operator calls -----------------------------------------------------------------------------------------
# A graph is a list of operator calls. In JSON:
#
#     {"inputs": [{"name": "tokens", "dtype": "int64", "shape": ["batch", 256]}],
#      "calls": [{"operator": "aten::embedding", "arguments": ["@embedding.weight", "%tokens"], "module": "embedding"},
#                {"operator": "aten::mul.Tensor", "arguments": ["%0", 2.0]}],
#      "outputs": ["%1"]}
#
# Arguments are JSON values, and:
# - `"%tokens"` is an input of the graph, `"%3"` the result of its call number 3;
# - `"@name"` is a stored tensor: a parameter, a buffer or a constant;
# - `{"dtype": "float32"}`, `{"memory_format": "contiguous_format"}`, `{"text": "tanh"}`, `{"number": "inf"}` are values
#   that JSON lacks; `{"device": true}` is the device of the run.
#
# A region is a call with a `graph` of its own that runs under a condition: `region::no_grad`, or `region::no_autocast`.


MAX_DIMENSIONS = 8  # of a tensor
MAX_ITEMS = 2**14  # of a list in a call, and of the tensors that an operator returns: a row's positions, one by one
MAX_SIZE = 2**40  # of a factor of a size, a dimension, and the elements of a stored tensor
MAX_CONSTANT_BYTES = 8_000
"""Of constants, and of calls, sizes, names and recipe, compressed. Larger tables are computed by the constructor."""
SIZE_NAMES = ("batch", "positions")  # sizes that are known only when a graph runs

Size = int | str  # a number, or one of SIZE_NAMES


class GraphError(UserError):
    """A traced architecture's files are not valid."""


@dataclass(frozen=True)
class Input:
    """An input of a graph."""

    name: str
    dtype: str = ""  # empty inside a region
    shape: tuple[Size, ...] = ()


@dataclass(frozen=True)
class Call:
    """One call of an operator."""

    operator: str  # `namespace::name.overload`
    arguments: tuple[Any, ...] = ()
    keywords: Mapping[str, Any] | None = None
    module: str = ""  # the module of the architecture that made the call, such as `blocks.0.attention`
    graph: Graph | None = None  # of a region

    @property
    def name(self) -> str:
        """The operator without its overload: `aten::add`."""
        return self.operator.partition(".")[0]


@dataclass(frozen=True)
class Graph:
    """Operator calls in their order."""

    inputs: tuple[Input, ...]
    calls: tuple[Call, ...]
    outputs: tuple[Any, ...]

    def iterate_calls(self) -> Iterator[Call]:
        """Yield all calls, with those of regions after the region."""
        for call in self.calls:
            yield call
            if call.graph is not None:
                yield from call.graph.iterate_calls()

    def list_stored_names(self) -> list[str]:
        """Return the names of the stored tensors that the graph reads, in order of their first use."""
        found: dict[str, None] = {}
        for call in self.iterate_calls():
            for value in iterate_values([call.arguments, list((call.keywords or {}).values())]):
                if isinstance(value, str) and value.startswith("@"):
                    found[value[1:]] = None
        return list(found)


@dataclass(frozen=True)
class StoredTensor:
    """A tensor that outlives a pass."""

    name: str
    kind: Literal["parameter", "buffer", "non_persistent_buffer"]
    dtype: str
    shape: tuple[int, ...]
    other_names: tuple[str, ...] = ()  # under which the same tensor stands in the architecture, if weights are shared

    @property
    def number_of_elements(self) -> int:
        return math.prod(self.shape)


@dataclass(frozen=True)
class Initialization:
    """`init.json`: the stored tensors, and the graph that computes them in this order."""

    tensors: tuple[StoredTensor, ...]
    graph: Graph
    constants: Mapping[str, Constant]  # small tensors of fixed values that any of the graphs reads


@dataclass(frozen=True)
class Constant:
    """A tensor of fixed values."""

    dtype: str
    shape: tuple[int, ...]
    data: str  # base64 of the bytes, little-endian, in row-major order

    @property
    def number_of_bytes(self) -> int:
        """Raises ValueError if `data` is not base64."""
        return len(base64.b64decode(self.data, validate=True))


@dataclass(frozen=True)
class Passes:
    """`train.json` or `eval.json`: tokens `[batch, T]` to features, and features `[batch, positions, W]` to logits."""

    features: Graph
    logits: Graph


def iterate_values(value: Any) -> Iterator[Any]:
    """Yield the values in nested lists, one by one."""
    if isinstance(value, list | tuple):
        for item in value:
            yield from iterate_values(item)
    else:
        yield value


VERSION = 1
DTYPES = (
    *("float32", "float64", "bfloat16", "float16", "complex64", "complex128"),
    *("int64", "int32", "int16", "int8", "uint8", "bool"),
)
UNSAVED_DTYPES = ("complex128",)  # of `DTYPES`; safetensors has no such type


@dataclass(frozen=True)
class TracedArchitecture:
    """The four files."""

    initialization: Initialization
    training: Passes
    evaluation: Passes
    recipe: Mapping[str, Any]  # `recipe.json`: sizes, parameter groups and schedule, as plain data

    def list_graphs(self) -> list[Graph]:
        """Return the graphs of the three files that have any, initialization first."""
        passes = (self.training, self.evaluation)
        return [self.initialization.graph, *(graph for each in passes for graph in (each.features, each.logits))]

    def to_files(self) -> dict[str, bytes]:
        """Return the content of each file of `GRAPH_FILES`."""
        contents = (
            encode_initialization(self.initialization),
            encode_passes(self.training),
            encode_passes(self.evaluation),
            {"version": VERSION, **self.recipe},
        )
        return {name: dump_json(content) for name, content in zip(GRAPH_FILES, contents, strict=True)}

    def compute_hash(self) -> str:
        """Return the SHA-256 of the four files: the identity of the architecture."""
        return hash_files(self.to_files())

    def write(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        for name, content in self.to_files().items():
            (folder / name).write_bytes(content)


def hash_files(files: Mapping[str, bytes]) -> str:
    """Return the SHA-256 over the hashes of the files, in the order of `GRAPH_FILES`."""
    digests = "".join(hashlib.sha256(files[name]).hexdigest() for name in GRAPH_FILES)
    return hashlib.sha256(digests.encode()).hexdigest()


def count_constant_bytes(traced: TracedArchitecture) -> int:
    """Return the bytes of the constant tensors, and of all else that the files say, compressed."""
    tensors = sum(constant.number_of_bytes for constant in traced.initialization.constants.values())
    return tensors + count_compressed_bytes(traced.initialization, traced.list_graphs(), traced.recipe)


def check_constant_bytes(traced: TracedArchitecture) -> None:
    """Raise `GraphError` if the files hold more than an architecture needs: they could carry text or weights."""
    graphs, constants = traced.list_graphs(), traced.initialization.constants.values()
    tensors = sum(constant.number_of_bytes for constant in constants)
    left = MAX_CONSTANT_BYTES - tensors
    if count_compressed_bytes(traced.initialization, graphs, traced.recipe, left) > left:
        calls = [call for graph in graphs for call in graph.iterate_calls()]
        longest = max(calls, key=lambda call: len(str(call.arguments)))
        arguments = sum(1 for _ in iterate_values(longest.arguments))
        raise GraphError(
            f"constants ({tensors:,} bytes), graphs and recipe have more than {MAX_CONSTANT_BYTES:,} bytes, compressed,"
            " as a table would: compute tables by formulas in the constructor, and make layers alike (the longest of"
            f" {len(calls):,} calls: {longest.operator}, {arguments:,} arguments)"
        )


def check_saved_dtype(kind: str, name: str, dtype: str) -> None:
    """Raise `GraphError` if a checkpoint cannot hold a parameter or buffer of this type."""
    if dtype in UNSAVED_DTYPES:
        advice = ", or register it with persistent=False" if kind == "buffer" else ""
        raise GraphError(
            f"the {kind} {name} has the type {dtype}, which a checkpoint cannot hold: convert it to complex64{advice}"
        )


def check_stored_tensors(initialization: Initialization) -> None:
    """Raise `GraphError` unless a module can have tensors of these names, types and sizes."""
    for tensor in initialization.tensors:
        if tensor.kind == "parameter" and not tensor.dtype.startswith(("float", "bfloat", "complex")):
            raise GraphError(f"the parameter {tensor.name} has the type {tensor.dtype}, which has no gradients")
        if tensor.kind != "non_persistent_buffer":
            check_saved_dtype(tensor.kind, tensor.name, tensor.dtype)
    for shape in (each.shape for each in (*initialization.tensors, *initialization.constants.values())):
        if math.prod(shape) > MAX_SIZE:
            raise GraphError(f"a stored tensor has the shape {list(shape)}: too large")
    for name in initialization.constants:
        if "." in name:
            raise GraphError(f"the constant {name} has a dot in its name")
    names = {name for t in initialization.tensors for name in (t.name, *t.other_names)} | set(initialization.constants)
    for name in names:
        parts = name.split(".")
        for length in range(1, len(parts)):
            if ".".join(parts[:length]) in names:
                raise GraphError(f"{'.'.join(parts[:length])} is a tensor, and {name} names a part of it")


# --- writing ----------------------------------------------------------------------------------------------------------


def dump_json(content: Mapping[str, Any]) -> bytes:
    """Return canonical JSON: no NaN, keys in the order of the schema."""
    return json.dumps(content, separators=(",", ":"), allow_nan=False).encode()


def encode_graph(graph: Graph) -> dict[str, Any]:
    return {
        "inputs": [
            {"name": i.name, "dtype": i.dtype, "shape": list(i.shape)} if i.dtype else {"name": i.name}
            for i in graph.inputs
        ],
        "calls": [encode_call(call) for call in graph.calls],
        "outputs": list(graph.outputs),
    }


def encode_call(call: Call) -> dict[str, Any]:
    encoded: dict[str, Any] = {"operator": call.operator, "arguments": list(call.arguments)}
    if call.keywords:
        encoded["keywords"] = dict(call.keywords)
    if call.module:
        encoded["module"] = call.module
    if call.graph is not None:
        encoded["graph"] = encode_graph(call.graph)
    return encoded


def encode_passes(passes: Passes) -> dict[str, Any]:
    return {"version": VERSION, "features": encode_graph(passes.features), "logits": encode_graph(passes.logits)}


def encode_initialization(initialization: Initialization) -> dict[str, Any]:
    tensors = [
        {"name": t.name, "kind": t.kind, "dtype": t.dtype, "shape": list(t.shape)}
        | ({"other_names": list(t.other_names)} if t.other_names else {})
        for t in initialization.tensors
    ]
    constants = {
        name: {"dtype": c.dtype, "shape": list(c.shape), "data": c.data} for name, c in initialization.constants.items()
    }
    graph = encode_graph(initialization.graph)
    return {"version": VERSION, "tensors": tensors, "constants": constants, "graph": graph}


# --- compressed size --------------------------------------------------------------------------------------------------
# Knowledge can hide in numbers, in the order of references, in sizes, names and learning rates. The compressed size
# bounds all of these together. An honest model repeats its layers, so it compresses well.


FILTERS = [{"id": lzma.FILTER_LZMA2, "preset": 6, "dict_size": 2**26}]
"""Raw LZMA2, whose window covers all four files: evaluation repeats training."""


def count_compressed_bytes(
    initialization: Initialization, graphs: Sequence[Graph], recipe: Mapping[str, Any], limit: float = math.inf
) -> int:
    """Return the compressed size of all that the four files say, but for constant data and paths of modules.

    `graphs`: of initialization, training and evaluation. Returns a number above `limit` as soon as there are more.
    """
    compressor = lzma.LZMACompressor(lzma.FORMAT_RAW, filters=FILTERS)
    size = 0
    for line in iterate_lines(initialization, graphs, recipe):
        size += len(compressor.compress(line.encode()))
        if size > limit:
            return size
    return size + len(compressor.flush())


def iterate_lines(initialization: Initialization, graphs: Sequence[Graph], recipe: Mapping[str, Any]) -> Iterator[str]:
    """Yield what the files say, line by line. Architectures that compute different things have different lines."""
    numbers: dict[str, int] = {}  # of stored tensors by name
    for number, tensor in enumerate(initialization.tensors):
        numbers |= dict.fromkeys((tensor.name, *tensor.other_names), number)
        yield dump([tensor.name, tensor.kind, tensor.dtype, tensor.shape, tensor.other_names])
    for name, constant in initialization.constants.items():
        numbers[name] = len(numbers)
        yield dump([constant.dtype, constant.shape])
    for graph in graphs:
        yield from GraphLines(numbers).iterate(graph)
    yield dump(recipe)


class GraphLines:
    """The lines of a graph. References say how far back they point, so equal layers have equal lines."""

    def __init__(self, stored_numbers: Mapping[str, int]) -> None:
        self.stored_numbers = stored_numbers
        self.last_stored = 0

    def iterate(self, graph: Graph) -> Iterator[str]:
        yield dump([[i.name, i.dtype, i.shape] for i in graph.inputs])
        for number, call in enumerate(graph.calls):
            yield self.describe(call, number)
            if call.graph is not None:
                yield from self.iterate(call.graph)
        yield dump([self.encode(value, len(graph.calls)) for value in graph.outputs])

    def describe(self, call: Call, number: int) -> str:
        keywords = {name: self.encode(value, number) for name, value in (call.keywords or {}).items()}
        return dump([call.operator, [self.encode(value, number) for value in call.arguments], keywords])

    def encode(self, value: Any, number: int) -> Any:
        if isinstance(value, list | tuple):
            return [self.encode(item, number) for item in value]
        if not isinstance(value, str):
            return value
        if value.startswith("@"):
            stored = self.stored_numbers[value[1:]]
            distance, self.last_stored = stored - self.last_stored, stored
            return f"@{distance}"
        return f"%-{number - int(value[1:])}" if value[1:].isdecimal() else value


def dump(value: Any) -> str:
    return json.dumps(value, separators=(",", ":")) + "\n"
