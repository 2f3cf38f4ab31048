"""The canonical form of a traced architecture: equal for two that train the same model, however they are written.

Names, the order of calls and of stored tensors, calls whose results nothing uses, the order of operands that commute,
views of views, and whether an argument is given by position or by name do not count. What is left gets colors, refined
by neighbors as in the test of Weisfeiler and Leman (1968): a value by its operator and operands, a stored tensor by its
shape, initialization, parameter group and uses.
"""

from __future__ import annotations

import fnmatch
import hashlib
import json
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from trainer.graph.checks import find_aliased, find_written, is_random
from trainer.graph.files import Call, Graph, TracedArchitecture, iterate_values
from trainer.graph.operators import bind_arguments

ROUNDS = 3
"""Of refinement. The first one tells matrices of one shape apart by what uses their products; each further one reaches
through another tensor."""
COMMUTING = tuple(f"aten::{name}.Tensor" for name in ("add", "mul", "maximum", "minimum", "eq", "ne"))
RESHAPES = ("aten::view", "aten::reshape", "aten::_unsafe_view")
COPIES = ("aten::alias", "aten::clone", "aten::contiguous")
"""They change no value, unless something is written in place."""
DETACHED = ("aten::alias", "aten::detach")
"""They change nothing in an initialization, which has no gradients."""
WHOLE = [0, 2**63 - 1]  # start and end of a slice
PATTERN_LENGTH = 8  # characters of a hash

Uses = dict[int | str, set[str]]
"""What reads a node or a stored tensor: hashes of the reader, of the argument, and of the reader's own uses."""


@dataclass(frozen=True)
class Reference:
    """A value at one moment: of a node, an input or a stored tensor, after calls that wrote to its memory."""

    node: int | str
    writes: tuple[int, ...] = ()


@dataclass
class Node:
    """A call."""

    operator: str  # after the regions around it
    arguments: dict[str, Any]  # references are `Reference`
    is_random: bool
    color: str = ""
    context: str = ""

    def iterate_references(self) -> Iterator[tuple[str, Reference]]:
        """Yield the references with the names of their arguments, which are the same for operands that commute."""
        for name, argument in self.arguments.items():
            for position, value in enumerate(iterate_values([argument])):
                if isinstance(value, Reference):
                    yield "" if self.operator.endswith(COMMUTING) else f"{name} {position}", value


def compute_canonical_hash(traced: TracedArchitecture) -> str:
    """Return a SHA-256 that architectures share if they train and score the same model, and nearly only then."""
    form = CanonicalForm(traced)
    for _ in range(ROUNDS):
        form.refine()
    return form.compute_hash()


def count_patterns(traced: TracedArchitecture) -> dict[str, int]:
    """Return how often each call with its operands' calls stands in the training graph, by its hash.

    Sizes and other numbers do not count: architectures that differ only in these have equal patterns.
    """
    patterns: Counter[str] = Counter()
    for graph in (traced.training.features, traced.training.logits):
        flat = FlatGraph(graph)
        kinds = dict(enumerate(digest(node.operator, *flat.list_operators(node)) for node in flat.nodes))
        for number in flat.live:
            operands = (kinds.get(reference.node, "") for _, reference in flat.nodes[number].iterate_references())
            patterns[digest(kinds[number], *operands)[:PATTERN_LENGTH]] += 1
    return dict(patterns)


def digest(*parts: Any) -> str:
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()


class FlatGraph:
    """A graph with its regions' calls in one list, without calls that change nothing."""

    def __init__(self, graph: Graph, is_initialization: bool = False) -> None:
        self.nodes: list[Node] = []
        self.is_initialization = is_initialization
        self.has_writes = any(find_written(call) for call in graph.iterate_calls() if call.graph is None)
        self.owners: dict[int | str, set[int]] = {}  # a node -> the nodes whose memory it may share
        self.writes: dict[int, list[int]] = defaultdict(list)  # an owner -> the nodes that write to its memory
        inputs = {f"%{each.name}": f"%{number} {each.dtype} {each.shape}" for number, each in enumerate(graph.inputs)}
        self.outputs = self.add_calls(graph, "", {name: Reference(node) for name, node in inputs.items()})
        self.live = self.list_live()

    def add_calls(self, graph: Graph, region: str, values: dict[str, Any]) -> list[Any]:
        """Append the calls of a graph or region, and return its outputs. `values`: by their names in the file."""
        for number, call in enumerate(graph.calls):
            if call.graph is not None:
                given = zip(call.graph.inputs, call.arguments, strict=True)
                inner = {f"%{each.name}": self.resolve(value, values) for each, value in given}
                value: Any = self.add_calls(call.graph, f"{region}{call.operator} ", inner)
            elif call.operator == "result::item" and isinstance(values[call.arguments[0]], list):
                value = values[call.arguments[0]][call.arguments[1]]
            else:
                value = self.add_call(call, region, values)
            values[f"%{number}"] = value
        return [self.resolve(value, values) for value in graph.outputs]

    def add_call(self, call: Call, region: str, values: Mapping[str, Any]) -> Reference:
        """Append a call unless it changes nothing, and return its result."""
        arguments = {name: self.resolve(value, values) for name, value in bind_arguments(call).items()}
        first, *others = arguments.values() if arguments else (None,)
        if isinstance(first, Reference) and self.is_idle(call.name, others):
            return Reference(first.node)
        operator = call.operator
        if call.name in RESHAPES and not self.has_writes:
            operator = RESHAPES[0]
            inner = self.nodes[first.node] if isinstance(first, Reference) and isinstance(first.node, int) else None
            if inner is not None and inner.operator == f"{region}{operator}":
                first = inner.arguments["self"]
            arguments = {"self": first, "size": others[0]}
        number = len(self.nodes)
        self.nodes.append(Node(f"{region}{operator}", arguments, is_random(call)))
        shared = [self.resolve(value, values) for value in iterate_values(find_aliased(call))]
        owners = {
            owner for value in shared if isinstance(value, Reference) for owner in self.owners.get(value.node, ())
        }
        self.owners[number] = owners or {number}
        for written in iterate_values(find_written(call)):
            for owner in self.owners.get(self.resolve(written, values).node, ()):
                self.writes[owner].append(number)
        return Reference(number)

    def resolve(self, value: Any, values: Mapping[str, Any]) -> Any:
        """Return a value of the file with its references replaced."""
        if isinstance(value, list | tuple):
            return [self.resolve(item, values) for item in value]
        if not isinstance(value, str):
            return value
        found = Reference(value) if value.startswith("@") else values[value]
        if not isinstance(found, Reference):
            return found
        # What was written before the node was made is in its own operands.
        writes = {n for o in self.owners.get(found.node, ()) for n in self.writes[o] if n > found.node}  # type: ignore[operator]
        return Reference(found.node, tuple(sorted(writes)))

    def is_idle(self, operator: str, others: Sequence[Any]) -> bool:
        """Return whether a call's result is its first argument."""
        if self.is_initialization and operator in DETACHED:
            return True
        is_whole = operator == "aten::slice" and list(others[1:]) == WHOLE
        return not self.has_writes and (is_whole or operator in COPIES)

    def list_operators(self, node: Node) -> list[str]:
        """Return the operators of a call's operands; of inputs and stored tensors only that."""
        found = (reference.node for _, reference in node.iterate_references())
        return [self.nodes[each].operator if isinstance(each, int) else each[0] for each in found]

    def list_live(self) -> list[int]:
        """Return the nodes that the outputs need."""
        waiting = [value for value in iterate_values(self.outputs) if isinstance(value, Reference)]
        live: set[int] = set()
        while waiting:
            reference = waiting.pop()
            for number in (reference.node, *reference.writes):
                if isinstance(number, int) and number not in live:
                    live.add(number)
                    waiting.extend(each for _, each in self.nodes[number].iterate_references())
        return sorted(live)

    def color(self, stored: Mapping[str, str]) -> list[Any]:
        """Color the live nodes by their operators and operands, and return the outputs' colors. `stored`: colors."""
        for number in self.live:
            node = self.nodes[number]
            arguments = {name: self.encode(value, stored) for name, value in node.arguments.items()}
            if node.operator.endswith(COMMUTING):
                arguments["self"], arguments["other"] = sorted((arguments["self"], arguments["other"]), key=json.dumps)
            node.color = digest(node.operator, arguments)
        return [self.encode(value, stored) for value in self.outputs]

    def encode(self, value: Any, stored: Mapping[str, str]) -> Any:
        if isinstance(value, list):
            return [self.encode(item, stored) for item in value]
        if not isinstance(value, Reference):
            return value
        is_stored = isinstance(value.node, str) and value.node.startswith("@")
        own = self.nodes[value.node].color if isinstance(value.node, int) else value.node
        return ["%", stored[str(own)[1:]] if is_stored else own, *(self.nodes[n].color for n in value.writes)]

    def find_uses(self, outputs: Sequence[str]) -> Uses:
        """Return what uses each live node and stored tensor, from the outputs' own uses back."""
        uses: Uses = defaultdict(set)
        for context, value in zip(outputs, self.outputs, strict=True):
            for each in iterate_values([value]):
                self.add_use(uses, each, context)
        for number in reversed(self.live):
            node = self.nodes[number]
            node.context = digest(sorted(uses[number]))
            for name, reference in node.iterate_references():
                self.add_use(uses, reference, digest(node.color, name, node.context))
        return uses

    def add_use(self, uses: Uses, value: Any, use: str) -> None:
        if isinstance(value, Reference):
            for node in (value.node, *value.writes):
                uses[node].add(use if node == value.node else digest("write", use))

    def list_draws(self) -> list[tuple[str, str]]:
        """Return the live nodes that draw random numbers: two of them differ, though their colors are equal."""
        return [(node.color, node.context) for node in map(self.nodes.__getitem__, self.live) if node.is_random]


class CanonicalForm:
    """The colors of an architecture's stored tensors, and its graphs."""

    def __init__(self, traced: TracedArchitecture) -> None:
        self.recipe = {name: value for name, value in traced.recipe.items() if name != "model"}
        groups = self.recipe["recipe"]["groups"]
        self.recipe["recipe"] = {name: value for name, value in self.recipe["recipe"].items() if name != "groups"}
        initialization = traced.initialization
        self.names = [(tensor.name, *tensor.other_names) for tensor in initialization.tensors]
        self.names += [(name,) for name in initialization.constants]
        constants = [digest(each.dtype, each.shape, each.data) for each in initialization.constants.values()]
        self.initialization = FlatGraph(initialization.graph, is_initialization=True)
        values = self.initialization.color(dict(zip(initialization.constants, constants, strict=True)))
        self.colors = [
            digest(t.kind, t.dtype, t.shape, value, find_group(t.name, groups) if t.kind == "parameter" else None)
            for t, value in zip(initialization.tensors, values, strict=True)
        ] + constants
        passes = (traced.training, traced.evaluation)
        self.graphs = [FlatGraph(graph) for each in passes for graph in (each.features, each.logits)]
        self.used = [False] * len(self.colors)

    def refine(self) -> None:
        """Give stored tensors that are used differently different colors."""
        stored = {name: color for names, color in zip(self.names, self.colors, strict=True) for name in names}
        self.outputs = [graph.color(stored) for graph in self.graphs]
        uses = [graph.find_uses([f"{n}" for n in range(len(graph.outputs))]) for graph in self.graphs]
        for number, names in enumerate(self.names):
            own = [sorted({use for name in names for use in each.get(f"@{name}", ())}) for each in uses]
            self.used[number] = any(own)
            self.colors[number] = digest(self.colors[number], own)

    def compute_hash(self) -> str:
        used = [color for color, is_used in zip(self.colors, self.used, strict=True) if is_used]
        graph = self.initialization
        graph.outputs = [value for value, is_used in zip(graph.outputs, self.used, strict=False) if is_used]
        graph.live = graph.list_live()
        graph.find_uses(used[: len(graph.outputs)])
        draws = [sorted(graph.list_draws()) for graph in (graph, *self.graphs)]
        return digest(sorted(used), self.outputs, draws, self.recipe)


def find_group(name: str, groups: Sequence[Mapping[str, Any]]) -> dict[str, Any] | None:
    """Return how a parameter is optimized: the settings of the first group with a pattern that matches its name."""
    for group in groups:
        if any(fnmatch.fnmatchcase(name, pattern) for pattern in group["match"]):
            return {key: value for key, value in group.items() if key not in ("name", "match")}
    return None
