"""Files that no trace writes: sizes that are zero where costs are counted, and values that become sizes."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from benchmarks.cheats.base import Case, Files, vary

SIZE, COUNTED, WORK = "aten::sym_size.int", (2, 3, 1021), 2**20
ROWS = 64  # at which the work is done

Append = Callable[..., str]
"""Adds a call to a graph: operator and arguments; returns the reference to its result."""


def forge(change: Callable[[Append], str]) -> Callable[[Files], Files]:
    """Return an edit of `train.json` and `eval.json`: features get the calls of `change`, and its result times 0."""

    def edit(files: Files) -> Files:
        edited = dict(files)
        for name in ("train.json", "eval.json"):
            table = json.loads(files[name])
            graph = table["features"]

            def append(operator: str, *arguments: Any, calls: list[Any] = graph["calls"]) -> str:
                calls.append({"operator": operator, "arguments": list(arguments)})
                return f"%{len(calls) - 1}"

            unused = append("aten::mul.Tensor", append("aten::sum", change(append)), 0)
            graph["outputs"] = [append("aten::add.Tensor", graph["outputs"][0], unused)]
            edited[name] = json.dumps(table).encode()
        return edited

    return edit


def work_on(append: Append, values: str) -> str:
    """Work a million times on each of some values `[n]`."""
    column = append("aten::unsqueeze", values, 1)
    return append("aten::mul.Tensor", column, append("aten::reshape", append("aten::arange", WORK), [1, WORK]))


def size_by_polynomial(append: Append) -> str:
    """A size that is positive only between the counted numbers of rows."""
    rows = append(SIZE, "%tokens", 0)
    first, second, third = (append("size::sub", rows, count) for count in COUNTED)
    negated = append("size::neg", append("size::mul", append("size::mul", first, second), third))
    return work_on(append, append("aten::arange", append("size::min", append("size::max", negated, 0), ROWS)))


def size_by_remainder(append: Append) -> str:
    """A size that is 0 unless 64 divides the number of rows."""
    remainder = append("size::mod", append(SIZE, "%tokens", 0), ROWS)
    return work_on(append, append("aten::arange", append("size::max", append("size::sub", 1, remainder), 0)))


def size_by_slice(append: Append) -> str:
    """A slice from 3 to 1021 - rows: empty at 2, 3 and 1021 rows."""
    rows = append(SIZE, "%tokens", 0)
    end = append("size::sub", COUNTED[-1], rows)
    return work_on(append, append("aten::slice.Tensor", append("aten::arange", rows), 0, 3, end))


def size_of_values(append: Append) -> str:
    """As many repetitions as the first token says."""
    first = append("result::item", append("result::item", "%tokens", 0), 0)
    return append("aten::arange", first)


CASES = [
    Case(name, "does not load", vary, forge(change))
    for name, change in {
        "works only at numbers of rows between the counted ones": size_by_polynomial,
        "works only if 64 divides the number of rows": size_by_remainder,
        "works on a slice that is empty at the counted numbers of rows": size_by_slice,
        "takes a size from the text": size_of_values,
    }.items()
]
