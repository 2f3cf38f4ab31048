"""Files that no trace writes: sizes that are zero where costs are counted, hidden writes, and wrong references."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from typing import Any

from benchmarks.cheats.base import WIDTH, Case, Files, T, Verdict, vary

SIZE, COUNTED, WORK = "aten::sym_size.int", (2, 3, 1021), 2**20
ROWS = 64  # at which the work is done
WEIGHT = "@mix.weight"

Append = Callable[..., str]
"""Adds a call to a graph: operator and arguments; returns the reference to its result."""


def forge(change: Callable[[Append], str], part: str = "features") -> Callable[[Files], Files]:
    """Return an edit of `train.json` and `eval.json`: a graph gets the calls of `change`, and their result times 0."""

    def edit(files: Files) -> Files:
        edited = dict(files)
        for name in ("train.json", "eval.json"):
            table = json.loads(files[name])
            graph = table[part]

            def append(operator: str, *arguments: Any, calls: list[Any] = graph["calls"], **keywords: Any) -> str:
                inner = {"graph": keywords.pop("graph")} if "graph" in keywords else {}
                calls.append({"operator": operator, "arguments": list(arguments), "keywords": keywords, **inner})
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


def size_by_reshape(append: Append) -> str:
    """Rows after the third, times a row of a table that gets shorter: none at 2, 3 and 1021 rows."""
    rows = append(SIZE, "%tokens", 0)
    table = append("aten::reshape", append("aten::arange", 3 * ROWS * COUNTED[-1]), [rows, -1])
    short = append("aten::slice.Tensor", append("aten::select.int", table, 0, 0), 0, 3 * ROWS, 2**62)
    later = append("aten::slice.Tensor", append("aten::arange", rows), 0, 3, 2**62)
    return append("aten::mul.Tensor", append("aten::unsqueeze", later, 1), append("aten::unsqueeze", short, 0))


def size_of_values(append: Append) -> str:
    """Repeat work by the value of the first token."""
    first = append("result::item", append("result::item", "%tokens", 0), 0)
    return append("aten::arange", first)


def size_past_a_row(append: Append) -> str:
    """Positions after the first `T`: logits of one row have none."""
    return work_on(append, take_column(append, append("aten::slice.Tensor", "%features", 1, T, 2**62)))


def size_that_falls(append: Append) -> str:
    """A slice from the number of positions to `T`: logits of one row have none."""
    return work_on(append, append("aten::slice.Tensor", append("aten::arange", T), 0, append(SIZE, "%features", 1), T))


def size_by_difference(append: Append) -> str:
    """`T` minus positions."""
    return work_on(append, append("aten::arange", append("size::sub", T, append(SIZE, "%features", 1))))


def compare_positions(append: Append) -> str:
    """All pairs of positions of a chunk."""
    column = take_column(append, "%features")
    return append("aten::mul.Tensor", append("aten::unsqueeze", column, 0), append("aten::unsqueeze", column, 1))


def work_in_each_chunk(append: Append) -> str:
    return append("aten::cos", append("aten::arange", WORK))


def write_through_type(append: Append) -> str:
    """`type_as` returns its argument if the type is the same."""
    return append("aten::add_.Scalar", append("aten::type_as", WEIGHT, WEIGHT), 1)


def write_by_keyword(append: Append) -> str:
    return append("aten::add_.Scalar", append("aten::view_as", self=WEIGHT, other=WEIGHT), 1)


def write_through_grid(append: Append) -> str:
    """The second result of `meshgrid` is a view of the second argument."""
    own = append("aten::arange", WIDTH)
    grids = append("aten::meshgrid", [own, append("aten::select.int", WEIGHT, 0, 0)])
    return append("aten::add_.Scalar", append("result::item", grids, 1), 1)


def write_statistics(append: Append) -> str:
    """Batch normalization in training writes to what it is given as running statistics."""
    statistics = append("aten::reshape", WEIGHT, [-1])
    values = append("aten::ones", [4, WIDTH * WIDTH])
    return append("aten::batch_norm", values, None, None, statistics, statistics, True, 1.0, 1e-5, False)


def write_under_the_name_of_another(append: Append) -> str:
    """Two inputs of a region have one name: the check reads the second, and the call writes to the first."""
    graph = {
        "inputs": [{"name": "a"}, {"name": "a"}],
        "calls": [{"operator": "aten::add_.Scalar", "arguments": ["%a", 1]}],
        "outputs": ["%0"],
    }
    result = append("region::no_grad", WEIGHT, append("aten::arange", WIDTH), graph=graph)
    return append("result::item", result, 0)


def read_unknown_tensor(append: Append) -> str:
    return append("aten::cos", "@unknown")


def pass_number_as_type(append: Append) -> str:
    """Torch accepts any number as a type, and does not return for this one."""
    return append("aten::cumprod", WEIGHT, 0, dtype=-1)


def call_interpreter(append: Append) -> str:
    """An operator of TorchScript's interpreter, which crashes outside of it."""
    return append("aten::to.prim_Device", WEIGHT, {"device": True})


def read_foreign_memory(append: Append) -> str:
    """Torch checks the first offset of bags and the last one only."""
    offsets = append("aten::mul.Tensor", append("aten::arange", 3), -20)
    indices = append("aten::zeros", [6], dtype={"dtype": "int64"})
    bags = append("aten::embedding_bag", WEIGHT, indices, offsets, False, 0, False, None, False)
    return append("result::item", bags, 0)


def sort_by_foreign_positions(append: Append) -> str:
    """A sorter is a list of positions, which a compiled search does not check."""
    sorter = append("aten::add.Scalar", append("aten::arange", WIDTH), 2**30)
    values = append("aten::select.int", WEIGHT, 0, 0)
    return append("aten::searchsorted.Tensor", values, values, sorter=sorter)


def attend_to_one_row(append: Append) -> str:
    """Keys of the first row for the queries of all: a GPU's kernel would read past their end."""
    query = append("aten::unsqueeze", append("aten::embedding", "@embedding.weight", "%tokens"), 1)
    key = append("aten::slice.Tensor", query, 0, 0, 1)
    return append("dailytrain::attention", query, key, key, T // 2, None)


def attend_to_short_documents(append: Append) -> str:
    """Document numbers of one position for longer rows: a GPU's kernel would not write the other positions."""
    values = append("aten::unsqueeze", append("aten::embedding", "@embedding.weight", "%tokens"), 1)
    documents = append("aten::slice.Tensor", "%tokens", 1, 0, 1)
    return append("dailytrain::attention", values, values, values, None, documents)


def squeeze_rows(append: Append) -> str:
    """More work at one row than the counts at two and three rows predict: `squeeze` changes the dimensions."""
    sums = append("aten::sum.dim_IntList", append("aten::embedding", "@embedding.weight", "%tokens"), [1, 2], True)
    squeezed = append("aten::squeeze", append("aten::expand", sums, [-1, 1, 6]))
    numbers = append("aten::arange", 6, dtype={"dtype": "float32"})
    return append("aten::mul.Tensor", append("aten::unsqueeze", squeezed, 1), numbers)


def write_numbers(append: Append) -> str:
    """Data in calls instead of constants: each contributes a number."""
    rng = random.Random(0)
    return append("aten::stack", [append("aten::scalar_tensor", rng.random()) for _ in range(4096)])


def write_references(append: Append) -> str:
    """Data as the order of references: each of one call's arguments stands for a byte, and no number is written."""
    parts = append("aten::unbind.int", append("aten::arange", 256))
    values = [append("result::item", parts, number) for number in range(256)]
    return append("aten::stack", random.Random(0).choices(values, k=40_000))


def edit_initialization(change: Callable[[Append], None]) -> Callable[[Files], Files]:
    """Return an edit of `init.json`: its graph gets the calls of `change`."""

    def edit(files: Files) -> Files:
        table = json.loads(files["init.json"])

        def append(operator: str, *arguments: Any, **keywords: Any) -> str:
            table["graph"]["calls"].append({"operator": operator, "arguments": list(arguments), "keywords": keywords})
            return f"%{len(table['graph']['calls']) - 1}"

        change(append)
        return {**files, "init.json": json.dumps(table).encode()}

    return edit


@edit_initialization
def compute_in_initialization(append: Append) -> None:
    """Products of large matrices before the run, where no budget counts them."""
    matrix = result = append("aten::randn", [1024, 1024])
    for _ in range(8):
        result = append("aten::tanh", append("aten::mm", result, matrix))


@edit_initialization
def hold_in_initialization(append: Append) -> None:
    """Two gigabytes at one time, for a model of some kilobytes."""
    parts = [append("aten::zeros", [2**25], dtype={"dtype": "bool"}) for _ in range(64)]
    append("aten::stack", [append("aten::select.int", part, 0, 0) for part in parts])


def take_column(append: Append, features: str) -> str:
    """Return one number of each position of the first row."""
    return append("aten::select.int", append("aten::select.int", features, 0, 0), 1, 0)


FORGED: dict[Verdict, dict[str, dict[str, Callable[[Append], str]]]] = {
    "does not load": {
        "features": {
            "works only at numbers of rows between the counted ones": size_by_polynomial,
            "works only if 64 divides the number of rows": size_by_remainder,
            "works on a slice that is empty at the counted numbers of rows": size_by_slice,
            "works on a table that is empty at the counted numbers of rows": size_by_reshape,
            "takes a size from the text": size_of_values,
            "writes to a weight through its type": write_through_type,
            "writes to a weight that is given as a keyword": write_by_keyword,
            "writes to a weight through a grid": write_through_grid,
            "writes to a weight as running statistics": write_statistics,
            "writes to a weight under the name of another tensor": write_under_the_name_of_another,
            "reads a tensor that does not exist": read_unknown_tensor,
            "passes a number as a type, at which torch stops": pass_number_as_type,
            "calls TorchScript's interpreter, which crashes": call_interpreter,
            "works more on one row than on two, by dropping the rows": squeeze_rows,
            "holds a table as numbers of calls": write_numbers,
            "holds a table as the order of references": write_references,
            "reads foreign memory through the offsets of bags": read_foreign_memory,
            "reads foreign memory through the order of a search": sort_by_foreign_positions,
            "reads foreign memory through attention to one row": attend_to_one_row,
            "reads old memory through attention to short documents": attend_to_short_documents,
        },
        "logits": {
            "works in logits at the positions that one row lacks": size_past_a_row,
            "works in logits on a slice that starts at the number of positions": size_that_falls,
            "works in logits on T - positions numbers": size_by_difference,
            "works in logits on all pairs of positions": compare_positions,
        },
    },
    "charged": {"logits": {"works in each chunk of logits": work_in_each_chunk}},
}

CASES = [
    *(
        Case(name, verdict, vary, forge(change, part))
        for verdict, parts in FORGED.items()
        for part, changes in parts.items()
        for name, change in changes.items()
    ),
    Case("computes in its initialization", "does not load", vary, compute_in_initialization),
    Case("holds gigabytes in its initialization", "does not load", vary, hold_in_initialization),
]
