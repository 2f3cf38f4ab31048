"""Files that would take minutes or gigabytes, or hold more than an architecture, are refused."""

from __future__ import annotations

import base64
import json
import random
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from benchmarks.cheats import bombs, forged_files
from benchmarks.cheats.base import Config, Files, T, V, vary
from tests.support.traced_models import edit_files, trace
from trainer.graph import foreign_files
from trainer.graph.build import check_passes
from trainer.graph.counting import count_training_cost
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
from trainer.graph.foreign_files import check_foreign_files
from trainer.graph.model import build_model_without_data
from trainer.graph.reading import parse_files
from trainer.graph.summary import describe_traced
from trainer.graph.trace import trace_architecture


@pytest.fixture(scope="module")
def traced() -> TracedArchitecture:
    return trace_architecture(vary(), Config(V, T))  # type: ignore[arg-type]


def read_and_count(files: Files) -> None:
    changed = parse_files(files)
    check_passes(changed)
    count_training_cost(build_model_without_data(changed))


def write(files: Files, folder: Path) -> Path:
    for name, content in files.items():
        (folder / name).write_bytes(content)
    return folder


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("stores a tensor of 400,000 dimensions", "a tensor has 400,002 dimensions, and 8 are allowed"),
        ("stores a tensor under 120,000 names", "more than 20,000 names"),
        ("lists a million numbers", "an argument is a list of 1,000,000 items, and 16,384 are allowed"),
        ("reshapes to 10,000 dimensions", "computes a tensor of more than 8 dimensions"),
        pytest.param(
            "adds 20,000 dimensions one by one", "computes a tensor of more than 8 dimensions", marks=pytest.mark.slow
        ),
        ("unbinds 300 million numbers", r"splits a tensor into more than 16,384 \(aten::unbind.int\)"),
        ("splits 300 million numbers", r"splits a tensor into more than 16,384 \(aten::split.Tensor\)"),
        ("cuts 300 million sections", "which returns at most 16,384 tensors"),
    ],
)
def test_bomb_is_refused_by_what_its_files_say(traced: TracedArchitecture, name: str, reason: str) -> None:
    with pytest.raises(GraphError, match=reason):
        read_and_count(bombs.BOMBS[name](traced.to_files()))


def test_files_of_too_many_values_are_refused_before_they_are_parsed(traced: TracedArchitecture) -> None:
    files = {**traced.to_files(), "recipe.json": b"[" + b"0," * 4_000_001}
    with pytest.raises(GraphError, match="more than 4,000,000 values"):
        parse_files(files)


@pytest.mark.parametrize("patterns", [[f"*{number}*" for number in range(501)], ["*a" * 501, "*"]])
def test_recipe_of_many_patterns_is_refused(traced: TracedArchitecture, patterns: list[str], tmp_path: Path) -> None:
    group = {**traced.recipe["recipe"]["groups"][0], "match": patterns}
    recipe = {**traced.recipe, "recipe": {**traced.recipe["recipe"], "groups": [group]}}
    with pytest.raises(GraphError, match="more than 500 patterns"):
        foreign_files.read_and_count(write(replace(traced, recipe=recipe).to_files(), tmp_path))


@pytest.mark.slow
def test_many_sizes_are_computed_in_the_deadline(traced: TracedArchitecture) -> None:
    check_passes(parse_files(forged_files.forge(bombs.compute_sizes)(traced.to_files())))


def test_norms_of_another_shape_than_the_weights_are_refused(traced: TracedArchitecture) -> None:
    changed = forged_files.forge(bombs.normalize_by_foreign_memory)(traced.to_files())
    with pytest.raises(GraphError, match=r"norms \[1, 1\] for weights \[16, 16\], which torch does not check"):
        read_and_count(changed)


def test_check_of_valid_files_returns_their_summary(traced: TracedArchitecture, tmp_path: Path) -> None:
    assert check_foreign_files(write(traced.to_files(), tmp_path)) == json.loads(json.dumps(describe_traced(traced)))


@pytest.mark.slow
def test_check_of_invalid_files_names_the_problem(traced: TracedArchitecture, tmp_path: Path) -> None:
    files = {**traced.to_files(), "eval.json": b"{}"}
    with pytest.raises(GraphError, match=r"eval\.json is not of version 1"):
        check_foreign_files(write(files, tmp_path))


@pytest.mark.slow
def test_check_of_files_that_take_long_ends_at_the_deadline(traced: TracedArchitecture, tmp_path: Path) -> None:
    files = bombs.BOMBS["calls 190,000 operators"](traced.to_files())
    with pytest.raises(GraphError, match="takes more than 4 s of a core"):
        check_foreign_files(write(files, tmp_path), 4)


@pytest.mark.slow
def test_check_that_runs_out_of_memory_blames_the_files(
    traced: TracedArchitecture, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(foreign_files, "MEMORY_BYTES", 128 * 2**20)
    recipe = json.dumps({"version": 1, **traced.recipe, "more": [[]] * 1_300_000}).encode()
    with pytest.raises(GraphError, match="bytes of memory to read"):
        check_foreign_files(write({**traced.to_files(), "recipe.json": recipe}, tmp_path))


# --- the compressed size of the four files ----------------------------------------------------------------------------


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
