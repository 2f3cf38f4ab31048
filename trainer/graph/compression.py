"""Compressed size of an architecture's files, apart from its constant tensors.

Knowledge can hide in numbers, in the order of references, in sizes, names and learning rates. The compressed size
bounds all of these together. An honest model repeats its layers, so it compresses well.
"""

from __future__ import annotations

import json
import lzma
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from trainer.graph.schema import Call, Graph, Initialization

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
