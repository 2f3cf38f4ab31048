"""Files that take minutes or gigabytes to read where nothing limits what they say."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from benchmarks.cheats.base import WIDTH, Case, Files, vary
from benchmarks.cheats.forged_files import SIZE, WEIGHT, Append, forge

Edit = Callable[[Files], Files]


def edit_tensors(change: Callable[[dict[str, Any]], None]) -> Edit:
    """Return an edit of the first stored tensor."""

    def edit(files: Files) -> Files:
        table = json.loads(files["init.json"])
        change(table["tensors"][0])
        return {**files, "init.json": json.dumps(table).encode()}

    return edit


def add_dimensions(tensor: dict[str, Any]) -> None:
    tensor["shape"] += [1] * 400_000


def add_names(tensor: dict[str, Any]) -> None:
    tensor["other_names"] = [f"{'a.' * 20}{number}" for number in range(120_000)]


def reshape_to_many_dimensions(append: Append) -> str:
    return append("aten::reshape", WEIGHT, [WIDTH, WIDTH, *[1] * 10_000])


def add_dimensions_one_by_one(append: Append) -> str:
    value = WEIGHT
    for _ in range(20_000):
        value = append("aten::unsqueeze", value, 0)
    return value


def unbind(append: Append) -> str:
    parts = append("aten::unbind.int", append("aten::arange", 300_000_000))
    return append("result::item", parts, 0)


def split(append: Append) -> str:
    parts = append("aten::split.Tensor", append("aten::arange", 300_000_000), 1)
    return append("result::item", parts, 0)


def cut_into_sections(append: Append) -> str:
    parts = append("aten::tensor_split.sections", append("aten::arange", 300_000_000), 300_000_000)
    return append("result::item", parts, 0)


def compute_sizes(append: Append) -> str:
    size = append(SIZE, "%tokens", 0)
    for _ in range(40_000):
        size = append("size::mul", size, 1)
    return append("aten::arange", size)


def list_numbers(append: Append) -> str:
    return append("aten::reshape", append("aten::arange", 1), [1] * 1_000_000)


def call_operators(append: Append) -> str:
    value = append("aten::cos", WEIGHT)
    for _ in range(95_000):
        value = append("aten::cos", value)
    return value


def normalize_by_foreign_memory(append: Append) -> str:
    """Norms of one weight for those of all rows: torch's kernel would read past their end."""
    return append("aten::_weight_norm", WEIGHT, append("aten::ones", [1, 1]), 0)


BOMBS: dict[str, Edit] = {
    "stores a tensor of 400,000 dimensions": edit_tensors(add_dimensions),
    "stores a tensor under 120,000 names": edit_tensors(add_names),
    "lists a million numbers": forge(list_numbers),
    "reshapes to 10,000 dimensions": forge(reshape_to_many_dimensions),
    "adds 20,000 dimensions one by one": forge(add_dimensions_one_by_one),
    "unbinds 300 million numbers": forge(unbind),
    "splits 300 million numbers": forge(split),
    "cuts 300 million sections": forge(cut_into_sections),
    "calls 190,000 operators": forge(call_operators),
}

CASES = [
    *(Case(name, "does not load", vary, edit) for name, edit in BOMBS.items()),
    Case(
        "reads foreign memory through the norms of weights", "does not load", vary, forge(normalize_by_foreign_memory)
    ),
]
