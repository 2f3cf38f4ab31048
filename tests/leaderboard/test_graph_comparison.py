"""Comparisons of graphs on pages: two graphs are compared once."""

from __future__ import annotations

import json
from typing import Any

import pytest

from leaderboard import graph_comparison
from leaderboard.graph_comparison import EVALUATION, INITIALIZATION, TRAINING
from leaderboard.graph_diffs import MAX_LINES
from leaderboard.models import TracedGraph

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
    assert first
    assert bool(first[0].diffs[0].problem) is (graph is GRAPH)
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
