"""The limit of the compressed size of the four files, apart from constant tensors."""

from __future__ import annotations

import base64
import random
from collections.abc import Callable, Mapping
from typing import Any

import pytest

from benchmarks.cheats import forged_files
from tests.support.traced_models import edit_files, trace
from trainer.graph.files import (
    MAX_CONSTANT_BYTES,
    Graph,
    GraphError,
    Initialization,
    TracedArchitecture,
    count_compressed_bytes,
    count_constant_bytes,
    iterate_lines,
)
from trainer.graph.reading import parse_files

SECRET = random.Random(0).randbytes(16_000)
Table = dict[str, Any]


def list_parts(traced: TracedArchitecture) -> tuple[Initialization, list[Graph], Mapping[str, Any]]:
    return traced.initialization, traced.list_graphs(), traced.recipe


def hide_in_outputs(table: Table) -> None:
    """Hide bytes in the choice of one of 256 calls for each of many buffers."""
    calls = table["graph"]["calls"]
    first = len(calls)
    calls += [{"operator": "aten::scalar_tensor", "arguments": [value]} for value in range(256)]
    table["graph"]["outputs"] += [f"%{first + byte}" for byte in SECRET]
    table["tensors"] += [
        {"name": f"hidden{number}", "kind": "buffer", "dtype": "float32", "shape": []} for number in range(len(SECRET))
    ]


def hide_in_shapes_of_constants(table: Table) -> None:
    """Hide bytes in the shapes of constants without elements."""
    for number, byte in enumerate(SECRET):
        table["constants"][f"hidden{number}"] = {"dtype": "bool", "shape": [0, byte], "data": ""}


def hide_in_learning_rates(table: Table) -> None:
    """Hide bytes in learning rates: the first step of AdamW moves a parameter by its rate."""
    groups = table["recipe"]["groups"]
    groups += [{**groups[0], "name": f"hidden{number}", "learning_rate": byte} for number, byte in enumerate(SECRET)]


def hide_in_operators(table: Table) -> None:
    operators = [f"aten::{name}" for name in ["sin", "cos", "tan", "exp", "neg", "abs", "erf", "sign"]]
    for byte in SECRET:
        for part in (byte % 8, byte // 8 % 8):
            table["features"]["calls"].append({"operator": operators[part], "arguments": ["@embedding.weight"]})


@pytest.mark.parametrize(
    ("change", "file"),
    [
        (hide_in_outputs, "init.json"),
        (hide_in_shapes_of_constants, "init.json"),
        (hide_in_learning_rates, "recipe.json"),
        (hide_in_operators, "eval.json"),
    ],
)
def test_files_that_hold_more_than_an_architecture_are_refused(change: Callable[[Table], None], file: str) -> None:
    with pytest.raises(GraphError, match=r"more than [\d,]+ (bytes, compressed|names)"):
        parse_files(edit_files(change, file))


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        (forged_files.write_numbers, r"compressed.*aten::stack, [\d,]+ arguments"),
        (forged_files.write_references, r"a list of [\d,]+ items, and 16,384 are allowed"),
    ],
)
def test_table_in_calls_is_refused(change: Callable[[forged_files.Append], str], problem: str) -> None:
    with pytest.raises(GraphError, match=problem):
        parse_files(forged_files.forge(change)(trace("nanogpt").to_files()))


@pytest.mark.parametrize("size", [3, MAX_CONSTANT_BYTES])
def test_constants_and_compressed_calls_have_one_budget(size: int) -> None:
    def add_constant(table: Table) -> None:
        data = base64.b64encode(bytes(size)).decode()
        table["constants"]["more"] = {"dtype": "uint8", "shape": [size], "data": data}

    files = edit_files(add_constant, "init.json")
    if size < MAX_CONSTANT_BYTES:
        traced = parse_files(files)
        assert count_constant_bytes(traced) == size + count_compressed_bytes(*list_parts(traced))
        return
    with pytest.raises(GraphError, match=r"constants \(8,000 bytes\), graphs and recipe have more than 8,000 bytes"):
        parse_files(files)


def test_lines_depend_on_every_reference_and_not_on_paths_of_modules() -> None:
    def count_changed_lines(change: Callable[[Table], None]) -> int:
        traced = (parse_files(edit_files(each)) for each in (lambda _: None, change))
        lines = [list(iterate_lines(*list_parts(each))) for each in traced]
        assert len(lines[0]) == len(lines[1])
        return sum(left != right for left, right in zip(*lines, strict=True))

    def change_reference(table: Table) -> None:
        call = next(c for c in table["features"]["calls"][9:] if any(str(a).startswith("%") for a in c["arguments"]))
        place = next(i for i, a in enumerate(call["arguments"]) if str(a).startswith("%"))
        call["arguments"][place] = "%1" if call["arguments"][place] != "%1" else "%2"

    def change_module(table: Table) -> None:
        table["features"]["calls"][0]["module"] = "another"

    assert count_changed_lines(change_reference) == 1
    assert count_changed_lines(change_module) == 0
