"""Diffs of two graphs by line: each change of the computation is visible."""

from __future__ import annotations

import json
from typing import Any

import pytest

from leaderboard.graph_diffs import MAX_LINES, MAX_SHOWN_LINES, GraphDiff, compare_files

INPUTS = [{"name": "tokens", "dtype": "int64", "shape": ["batch", 64]}]


def build_call(operator: str, *arguments: Any, **fields: Any) -> dict[str, Any]:
    return {"operator": operator, "arguments": list(arguments), **fields}


def build_graph(*calls: dict[str, Any], outputs: tuple[str, ...] = ("%0",)) -> dict[str, Any]:
    return {"inputs": INPUTS, "calls": list(calls), "outputs": list(outputs)}


def compare_graphs(before: dict[str, Any], after: dict[str, Any]) -> GraphDiff:
    return compare_files("main", *(json.dumps({"features": features}).encode() for features in (before, after)))


def list_changes(diff: GraphDiff) -> list[str]:
    assert not diff.problem
    lines = [line for hunk in diff.hunks for line in hunk.lines]
    return [f"{line.sign} {line.text.strip()}" for line in lines if line.kind != "same"]


def test_diff_of_equal_graphs_is_empty() -> None:
    graph = build_graph(build_call("aten::exp", "%tokens"))
    assert compare_graphs(graph, graph).hunks == []


CHAIN = (build_call("aten::exp", "%tokens"), build_call("aten::neg", "%0"), build_call("aten::add.Tensor", "%0", "%1"))
ROLLED = (
    build_call("aten::exp", "%tokens"), build_call("aten::roll", "%0", [1], [1]), build_call("aten::neg", "%1"),
    build_call("aten::add.Tensor", "%1", "%2"),
)  # fmt: skip


def test_diff_of_inserted_call_changes_only_its_readers() -> None:
    diff = compare_graphs(build_graph(*CHAIN, outputs=("%2",)), build_graph(*ROLLED, outputs=("%3",)))
    assert list_changes(diff) == [
        "− %/neg.1 = aten::neg(%/exp.1)",
        "− %/add.Tensor.1 = aten::add.Tensor(%/exp.1, %/neg.1)",
        "+ %/roll.1 = aten::roll(%/exp.1, [1], [1])",
        "+ %/neg.1 = aten::neg(%/roll.1)",
        "+ %/add.Tensor.1 = aten::add.Tensor(%/roll.1, %/neg.1)",
    ]


CHANGES: dict[str, tuple[dict[str, Any], dict[str, Any], list[str]]] = {
    "constant": (
        build_graph(build_call("aten::mul.Tensor", "%tokens", 0.5, module="head")),
        build_graph(build_call("aten::mul.Tensor", "%tokens", 0.25, module="head")),
        [
            "− %head/mul.Tensor.1 = aten::mul.Tensor(%tokens, 0.5)",
            "+ %head/mul.Tensor.1 = aten::mul.Tensor(%tokens, 0.25)",
        ],
    ),
    "keyword": (
        build_graph(build_call("aten::sum", "%tokens", keywords={"dtype": {"dtype": "float32"}})),
        build_graph(build_call("aten::sum", "%tokens", keywords={"dtype": {"dtype": "bfloat16"}})),
        ["− %/sum.1 = aten::sum(%tokens, dtype=float32)", "+ %/sum.1 = aten::sum(%tokens, dtype=bfloat16)"],
    ),
    "argument of equal operator": (
        build_graph(
            build_call("aten::exp", "%tokens"),
            build_call("aten::exp", "%0"),
            build_call("aten::neg", "%0"),
            outputs=("%2",),
        ),
        build_graph(
            build_call("aten::exp", "%tokens"),
            build_call("aten::exp", "%0"),
            build_call("aten::neg", "%1"),
            outputs=("%2",),
        ),
        ["− %/neg.1 = aten::neg(%/exp.1)", "+ %/neg.1 = aten::neg(%/exp.2)"],
    ),
    "selected result": (
        build_graph(
            build_call("aten::sort", "%tokens"),
            build_call("result::item", "%0", 0),
            build_call("aten::neg", "%1"),
            outputs=("%2",),
        ),
        build_graph(
            build_call("aten::sort", "%tokens"),
            build_call("result::item", "%0", 1),
            build_call("aten::neg", "%1"),
            outputs=("%2",),
        ),
        ["− %/neg.1 = aten::neg(%/sort.1[0])", "+ %/neg.1 = aten::neg(%/sort.1[1])"],
    ),
    "output": (
        build_graph(build_call("aten::exp", "%tokens"), build_call("aten::neg", "%tokens"), outputs=("%0",)),
        build_graph(build_call("aten::exp", "%tokens"), build_call("aten::neg", "%tokens"), outputs=("%1",)),
        ["− return [%/exp.1]", "+ return [%/neg.1]"],
    ),
    "region": (
        build_graph(
            build_call("region::no_grad", "%tokens", graph=build_graph(build_call("aten::mul.Tensor", "%tokens", 2)))
        ),
        build_graph(
            build_call("region::no_grad", "%tokens", graph=build_graph(build_call("aten::mul.Tensor", "%tokens", 3)))
        ),
        ["− %/mul.Tensor.1 = aten::mul.Tensor(%tokens, 2)", "+ %/mul.Tensor.1 = aten::mul.Tensor(%tokens, 3)"],
    ),
}


@pytest.mark.parametrize("name", CHANGES)
def test_diff_of_each_kind_of_change_is_shown(name: str) -> None:
    before, after, changes = CHANGES[name]
    assert list_changes(compare_graphs(before, after)) == changes


def test_diff_at_end_of_long_line_is_shown() -> None:
    tables = [build_graph(build_call("aten::index", "%tokens", [*range(1000), last])) for last in (1, 2)]
    removed, added = list_changes(compare_graphs(*tables))
    assert removed.partition("…")[0][1:] == added.partition("…")[0][1:]
    assert removed[1:] != added[1:]
    assert len(added) < 400


def test_diff_of_constant_tensor_is_shown() -> None:
    tensors = [{"constants": {"mask": {"dtype": "int8", "shape": [2], "data": data}}} for data in ("AAA=", "AAE=")]
    removed, added = list_changes(compare_files("main", *(json.dumps(tensor).encode() for tensor in tensors)))
    assert removed.startswith('− constants mask {"data": "AAA="')
    assert added.startswith('+ constants mask {"data": "AAE="')


def test_diff_escapes_line_break_in_name() -> None:
    diff = compare_graphs(
        build_graph(), build_graph(build_call("aten::exp", "%tokens", module="head\n+ aten::neg(%1)"))
    )
    (line,) = [line for hunk in diff.hunks for line in hunk.lines if "aten::exp" in line.text]
    assert "%head⟨U+000A⟩+ aten::neg(%1)/exp.1 = aten::exp(%tokens)" in line.visible_text


def test_large_diff_is_truncated() -> None:
    diff = compare_graphs(
        build_graph(), build_graph(*[build_call("aten::mul.Tensor", "%tokens", n) for n in range(MAX_SHOWN_LINES + 10)])
    )
    assert sum(len(hunk.lines) for hunk in diff.hunks) == MAX_SHOWN_LINES
    assert diff.omitted > 0


@pytest.mark.parametrize("content", [None, b"{", b"[]", b'{"features": {"calls": [1]}}', b"[" * 100_000])
def test_diff_of_invalid_file_gives_problem(content: bytes | None) -> None:
    assert compare_files("main", content, json.dumps({"features": build_graph()}).encode()).problem


@pytest.mark.timeout(60)
@pytest.mark.parametrize(
    "calls",
    [
        [build_call("result::item")],
        [build_call("result::item", "%tokens", "x")],
        [build_call("result::item", "%tokens", 10**4000)],  # would be repeated at each use
        [build_call("result::item", "%" + 300 * "x", 0)],
        [build_call("result::item", [f"%{n}", f"%{n}"], 0) for n in range(-1, 25)],  # would double each time
        [build_call("result::item", f"%{n}", 0) for n in range(-1, 3000)],
    ],
)
def test_diff_of_invalid_selection_gives_problem(calls: list[dict[str, Any]]) -> None:
    assert "not a valid graph" in compare_graphs(build_graph(), build_graph(*calls)).problem


def test_diff_of_too_many_calls_gives_problem() -> None:
    large = build_graph(*[build_call("aten::exp", "%tokens")] * MAX_LINES)
    assert "more than 4,000" in compare_graphs(large, large).problem
