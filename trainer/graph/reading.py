"""Read the four files of a traced architecture, which may come from anybody, and check them. No torch."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from trainer.graph.files import (
    DTYPES,
    MAX_DIMENSIONS,
    MAX_ITEMS,
    MAX_SIZE,
    SIZE_NAMES,
    VERSION,
    Call,
    Constant,
    Graph,
    GraphError,
    Initialization,
    Input,
    Passes,
    Size,
    StoredTensor,
    TracedArchitecture,
    check_constant_bytes,
    check_stored_tensors,
    iterate_values,
)
from trainer.protocol.files import GRAPH_FILES

MAX_FILE_BYTES = 64 * 2**20
MAX_VALUES = 4_000_000  # numbers, texts, lists and objects of the four files
MAX_NODES = 200_000  # calls of all graphs of an architecture, with those of regions
MAX_NAMES = 20_000  # of stored tensors and constants
MAX_LIST_DEPTH = 3  # of an argument: torch takes lists of tensors and numbers
REGIONS = ("region::no_grad", "region::no_autocast")
NAME = re.compile(r"[A-Za-z0-9_]+(\.[A-Za-z0-9_]+)*")
OPERATOR = re.compile(r"[a-z_]+::[A-Za-z0-9_]+(\.[A-Za-z0-9_]+)?")
MEMORY_FORMATS = ("contiguous_format", "preserve_format", "channels_last")


def read_traced(folder: Path) -> TracedArchitecture:
    """Read and check the four files of a folder. Raises `GraphError`; what operators do is checked by `build`."""
    files: dict[str, bytes] = {}
    for name in GRAPH_FILES:
        path = folder / name
        if not path.is_file():
            raise GraphError(f"{path} is missing: a traced architecture has the files {', '.join(GRAPH_FILES)}")
        if path.stat().st_size > MAX_FILE_BYTES:
            raise GraphError(f"{path} has more than {MAX_FILE_BYTES:,} bytes")
        files[name] = path.read_bytes()
    return parse_files(files)


def parse_files(files: Mapping[str, bytes]) -> TracedArchitecture:
    """Return the architecture of the content of the four files. Raises `GraphError`."""
    if sum(content.count(mark) for content in files.values() for mark in (b",", b"[", b"{")) > MAX_VALUES:
        raise GraphError(f"the files have more than {MAX_VALUES:,} values")
    tables = {name: parse_json(name, files[name]) for name in GRAPH_FILES}
    try:
        recipe = {name: value for name, value in tables["recipe.json"].items() if name != "version"}
        traced = TracedArchitecture(
            decode_initialization(tables["init.json"]),
            decode_passes(tables["train.json"]),
            decode_passes(tables["eval.json"]),
            recipe,
        )
        check_traced_sizes(traced)
        check_stored_tensors(traced.initialization)
        check_stored_names(traced)
        check_constant_bytes(traced)
        return traced
    except (KeyError, TypeError, ValueError, AttributeError, RecursionError) as error:
        if isinstance(error, GraphError):
            raise
        raise GraphError(f"the traced architecture is not valid: {type(error).__name__}: {error}") from error


def check_traced_sizes(traced: TracedArchitecture) -> None:
    """Raise `GraphError` unless the sizes of the recipe are those of the graphs, which training and costs rely on."""
    for name in ("sequence_length", "vocabulary_size"):
        size = traced.recipe[name]
        if not isinstance(size, int) or isinstance(size, bool) or not 0 < size <= MAX_SIZE:
            raise GraphError(f"recipe.json has {size!r} as {name}")
        if traced.recipe["model"][name] != size:
            raise GraphError(f"recipe.json has two values of {name}")
    expected = Input("tokens", "int64", ("batch", traced.recipe["sequence_length"]))
    passes = (traced.training, traced.evaluation)
    for each in passes:
        if each.features.inputs != (expected,):
            raise GraphError(f"features takes tokens of the shape [batch, {traced.recipe['sequence_length']}]")
        *sizes, width = each.logits.inputs[0].shape
        if tuple(sizes) != SIZE_NAMES or not isinstance(width, int):
            raise GraphError("logits takes features of the shape [batch, positions, width]")
    if sum(1 for graph in traced.list_graphs() for _ in graph.iterate_calls()) > MAX_NODES:
        raise GraphError(f"the graphs have more than {MAX_NODES:,} calls together")


def check_stored_names(traced: TracedArchitecture) -> None:
    """Raise `GraphError` unless every stored tensor that a graph reads exists. `init.json` has constants only."""
    constants = set(traced.initialization.constants)
    tensors = {name for t in traced.initialization.tensors for name in (t.name, *t.other_names)}
    passes = [graph for each in (traced.training, traced.evaluation) for graph in (each.features, each.logits)]
    for graph, known in ((traced.initialization.graph, constants), *((graph, constants | tensors) for graph in passes)):
        for name in graph.list_stored_names():
            if name not in known:
                raise GraphError(f"a graph reads {name}, which the initialization does not compute")


def parse_json(name: str, content: bytes) -> dict[str, Any]:
    try:
        table = json.loads(content, parse_constant=refuse_constant, parse_float=parse_finite)
    except (ValueError, RecursionError) as error:
        raise GraphError(f"{name} is not valid JSON: {error}") from error
    if not isinstance(table, dict) or table.get("version") != VERSION:
        raise GraphError(f"{name} is not of version {VERSION} of the graph format")
    return table


def parse_finite(text: str) -> float:
    value = float(text)
    if not math.isfinite(value):
        raise ValueError(f"{text} is larger than any number of 64 bits")
    return value


def refuse_constant(text: str) -> None:
    raise ValueError(f"{text} is not a JSON value")


def decode_passes(table: Mapping[str, Any]) -> Passes:
    features, logits = decode_graph(table["features"]), decode_graph(table["logits"])
    for part in (features, logits):
        if len(part.inputs) != 1 or len(part.outputs) != 1:
            raise GraphError("features and logits have one input and one output each")
    return Passes(features, logits)


def decode_initialization(table: Mapping[str, Any]) -> Initialization:
    tensors = tuple(
        StoredTensor(
            check_name(t["name"]),
            check_choice(t["kind"], ("parameter", "buffer", "non_persistent_buffer")),
            check_choice(t["dtype"], DTYPES),
            check_sizes(t["shape"]),
            tuple(check_name(name) for name in t.get("other_names", ())),
        )
        for t in table["tensors"]
    )
    constants = {
        check_name(name): Constant(check_choice(c["dtype"], DTYPES), check_sizes(c["shape"]), str(c["data"]))
        for name, c in table["constants"].items()
    }
    names = [name for t in tensors for name in (t.name, *t.other_names)] + list(constants)
    if len(names) > MAX_NAMES:
        raise GraphError(f"stored tensors have more than {MAX_NAMES:,} names")
    if len(set(names)) != len(names):
        raise GraphError("two stored tensors have the same name")
    graph = decode_graph(table["graph"])
    if any(call.graph is not None for call in graph.calls):
        raise GraphError("the initialization has a region, and it computes no gradients anyway")
    if len(graph.outputs) != len(tensors):
        raise GraphError(f"the initialization returns {len(graph.outputs)} tensors and names {len(tensors)}")
    return Initialization(tensors, graph, constants)


def decode_graph(table: Mapping[str, Any], depth: int = 0) -> Graph:
    """Return a graph whose calls refer only to what is before them. Regions may be nested four deep."""
    if depth > 4:
        raise GraphError("regions are nested more than four deep")
    inputs = tuple(
        Input(check_name(i["name"]), i.get("dtype", ""), check_shape(i.get("shape", ()))) for i in table["inputs"]
    )
    known = {f"%{i.name}" for i in inputs}
    if len(known) < len(inputs) or any(i.name.isdecimal() for i in inputs):
        raise GraphError("inputs of a graph need names that differ from each other and are no numbers")
    calls: list[Call] = []
    if len(table["calls"]) > MAX_NODES:
        raise GraphError(f"a graph has more than {MAX_NODES:,} calls")
    for number, entry in enumerate(table["calls"]):
        calls.append(decode_call(entry, known, depth))
        known.add(f"%{number}")
    check_values(table["outputs"], known)
    return Graph(inputs, tuple(calls), tuple(table["outputs"]))


def decode_call(entry: Mapping[str, Any], known: set[str], depth: int) -> Call:
    operator, module = entry["operator"], entry.get("module", "")
    if not isinstance(operator, str) or not OPERATOR.fullmatch(operator):
        raise GraphError(f"{operator!r} is not the name of an operator")
    if module:
        check_name(module)
    arguments, keywords = entry["arguments"], entry.get("keywords", {})
    check_values([*arguments, *keywords.values()], known)
    for name in keywords:
        check_name(name)
    is_region = operator in REGIONS
    if is_region != ("graph" in entry):
        raise GraphError(f"a call of {operator} {'needs a' if is_region else 'has no'} graph")
    if is_region and (keywords or not all(isinstance(value, str | int) for value in arguments)):
        raise GraphError(f"{operator} takes results and numbers")
    graph = decode_graph(entry["graph"], depth + 1) if is_region else None
    if graph is not None and len(graph.inputs) != len(arguments):
        raise GraphError(f"{operator} gets {len(arguments)} arguments for {len(graph.inputs)} inputs")
    return Call(operator, tuple(arguments), keywords or None, module, graph)


def check_values(values: list[Any], known: set[str]) -> None:
    """Raise `GraphError` unless these are arguments (`trainer.graph.files`) that refer to `known` values only."""
    check_list_depth(values, MAX_LIST_DEPTH + 1)  # `values` is a list itself
    for value in iterate_values(values):
        if isinstance(value, str):
            if value.startswith("%") and value in known:
                continue
            if value.startswith("@") and NAME.fullmatch(value[1:]):
                continue
            raise GraphError(f"{value!r} refers to nothing before it")
        if isinstance(value, Mapping):
            check_special_value(value)
        elif isinstance(value, int) and not -(2**63) <= value < 2**63:
            raise GraphError("a number of more than 64 bits cannot be an argument")
        elif not (value is None or isinstance(value, bool | int | float)):
            raise GraphError(f"{value!r} cannot be an argument")


def check_list_depth(value: Any, depth: int) -> None:
    if isinstance(value, list):
        if depth == 0:
            raise GraphError(f"an argument is a list nested more than {MAX_LIST_DEPTH} deep")
        if len(value) > MAX_ITEMS:
            raise GraphError(f"an argument is a list of {len(value):,} items, and {MAX_ITEMS:,} are allowed")
        for item in value:
            check_list_depth(item, depth - 1)


def check_special_value(value: Mapping[str, Any]) -> None:
    (kind, content), *others = value.items()
    choices = {"dtype": DTYPES, "memory_format": MEMORY_FORMATS, "number": ("inf", "-inf", "nan"), "device": (True,)}
    if others or kind not in (*choices, "text"):
        raise GraphError(f"{value!r} cannot be an argument")
    if kind != "text":
        check_choice(content, choices[kind])
    elif not isinstance(content, str) or len(content) > 40:
        raise GraphError(f"{content!r} cannot be an argument")


def check_name(name: Any) -> str:
    if not isinstance(name, str) or len(name) > 200 or not NAME.fullmatch(name):
        raise GraphError(f"{name!r} is not a valid name")
    return name


def check_choice(value: Any, choices: tuple[Any, ...]) -> Any:
    if value not in choices:
        raise GraphError(f"{value!r} is not one of {', '.join(map(str, choices))}")
    return value


def check_size(size: Any) -> Size:
    if isinstance(size, int) and not isinstance(size, bool) and 0 <= size <= MAX_SIZE:
        return size
    return str(check_choice(size, SIZE_NAMES))


def check_shape(sizes: Any) -> tuple[Size, ...]:
    if len(sizes) > MAX_DIMENSIONS:
        raise GraphError(f"a tensor has {len(sizes):,} dimensions, and {MAX_DIMENSIONS} are allowed")
    return tuple(map(check_size, sizes))


def check_sizes(sizes: Any) -> tuple[int, ...]:
    checked = check_shape(sizes)
    if not all(isinstance(size, int) for size in checked):
        raise GraphError(f"{sizes!r} is not a shape of numbers")
    return tuple(sizes)
