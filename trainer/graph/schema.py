"""Graphs of operator calls, and what the files of a traced architecture contain. No torch.

A graph is a list of operator calls. In JSON:

    {"inputs": [{"name": "tokens", "dtype": "int64", "shape": ["batch", 256]}],
     "calls": [{"operator": "aten::embedding", "arguments": ["@embedding.weight", "%tokens"], "module": "embedding"},
               {"operator": "aten::mul.Tensor", "arguments": ["%0", 2.0]}],
     "outputs": ["%1"]}

Arguments are JSON values, and:
- `"%tokens"` is an input of the graph, `"%3"` the result of its call number 3;
- `"@name"` is a stored tensor: a parameter, a buffer or a constant;
- `{"dtype": "float32"}`, `{"memory_format": "contiguous_format"}`, `{"text": "tanh"}`, `{"number": "inf"}` are values
  that JSON lacks; `{"device": true}` is the device of the run.

A region is a call with a `graph` of its own that runs under a condition: `region::no_grad`, or `region::no_autocast`.
"""

from __future__ import annotations

import base64
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from trainer.errors import UserError

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
