"""Diffs of two graphs by line: each change of the computation is visible."""

from __future__ import annotations

import json
from typing import Any

import pytest

from leaderboard import graph_comparison
from leaderboard.graph_comparison import EVALUATION, INITIALIZATION, TRAINING
from leaderboard.graph_diffs import MAX_LINES, GraphDiff, compare_files
from leaderboard.models import TracedGraph

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


def build_chain(*last: Any) -> dict[str, Any]:
    """Return a graph of two equal calls and a last one."""
    return build_graph(
        build_call("aten::exp", "%tokens"), build_call("aten::exp", "%0"), build_call(*last), outputs=("%2",)
    )


def build_selection(number: int) -> dict[str, Any]:
    """Return a graph that uses one result of several."""
    calls = (
        build_call("aten::sort", "%tokens"),
        build_call("result::item", "%0", number),
        build_call("aten::neg", "%1"),
    )
    return build_graph(*calls, outputs=("%2",))


def build_region(factor: int) -> dict[str, Any]:
    inner = build_graph(build_call("aten::mul.Tensor", "%tokens", factor))
    return build_graph(build_call("region::no_grad", "%tokens", graph=inner))


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
        build_chain("aten::neg", "%0"),
        build_chain("aten::neg", "%1"),
        ["− %/neg.1 = aten::neg(%/exp.1)", "+ %/neg.1 = aten::neg(%/exp.2)"],
    ),
    "selected result": (
        build_selection(0),
        build_selection(1),
        ["− %/neg.1 = aten::neg(%/sort.1[0])", "+ %/neg.1 = aten::neg(%/sort.1[1])"],
    ),
    "output": (
        build_graph(build_call("aten::exp", "%tokens"), build_call("aten::neg", "%tokens"), outputs=("%0",)),
        build_graph(build_call("aten::exp", "%tokens"), build_call("aten::neg", "%tokens"), outputs=("%1",)),
        ["− return [%/exp.1]", "+ return [%/neg.1]"],
    ),
    "region": (
        build_region(2),
        build_region(3),
        ["− %/mul.Tensor.1 = aten::mul.Tensor(%tokens, 2)", "+ %/mul.Tensor.1 = aten::mul.Tensor(%tokens, 3)"],
    ),
}


@pytest.mark.parametrize("name", CHANGES)
def test_diff_of_each_kind_of_change_is_shown(name: str) -> None:
    before, after, changes = CHANGES[name]
    assert list_changes(compare_graphs(before, after)) == changes


@pytest.mark.parametrize("content", [None, b"{", b"[]", b'{"features": {"calls": [1]}}', b"[" * 100_000])
def test_diff_of_invalid_file_gives_problem(content: bytes | None) -> None:
    assert compare_files("main", content, json.dumps({"features": build_graph()}).encode()).problem


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


GRAPH = TracedGraph(hash="a" * 64)
REFERENCE = TracedGraph(hash="b" * 64)


def write_graph(calls: int) -> bytes:
    call = {"operator": "aten::exp", "arguments": ["%tokens"]}
    return json.dumps({"features": {"inputs": [], "calls": [call] * calls, "outputs": ["%0"]}}).encode()


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> list[TracedGraph]:
    """Record whose files are read. The graph has too many calls to be compared, its reference has two."""
    found: list[TracedGraph] = []

    def read_files(graph: TracedGraph) -> dict[str, bytes]:
        found.append(graph)
        content = write_graph(MAX_LINES + 1 if graph is GRAPH else 2)
        return dict.fromkeys((TRAINING, EVALUATION, INITIALIZATION), content)

    monkeypatch.setattr(graph_comparison, "read_files", read_files)
    return found


@pytest.mark.parametrize("graph", [GRAPH, TracedGraph(hash="c" * 64)], ids=["too large", "small"])
def test_graphs_are_read_once_also_when_they_cannot_be_compared(graph: TracedGraph, reads: list[TracedGraph]) -> None:
    first = graph_comparison.list_sections(graph, REFERENCE)
    assert bool(first[0][1][0].problem) is (graph is GRAPH)
    assert graph_comparison.list_sections(graph, REFERENCE) == first
    assert reads == [graph, REFERENCE]
    assert graph_comparison.list_sections(graph, None)
    assert reads == [graph, REFERENCE, graph]


def test_graphs_are_not_read_while_another_request_compares_them(
    reads: list[TracedGraph], monkeypatch: pytest.MonkeyPatch
) -> None:
    found: list[Any] = []
    compare_graphs = graph_comparison.compare_graphs

    def ask_again(*files: Any) -> Any:
        found.append(graph_comparison.list_sections(GRAPH, REFERENCE))
        return compare_graphs(*files)

    monkeypatch.setattr(graph_comparison, "compare_graphs", ask_again)
    assert graph_comparison.list_sections(GRAPH, REFERENCE)
    assert (found, reads) == ([None], [GRAPH, REFERENCE])
