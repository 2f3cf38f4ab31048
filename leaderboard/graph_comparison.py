"""An entry's graph for its page: costs, operators, and how it differs from main's graph on the same track."""

from __future__ import annotations

import difflib
import json
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from django.core.cache import cache

from leaderboard import caps
from leaderboard.caps import CappedValue
from leaderboard.formatting import MISSING, SPACE, binary, compact, power
from leaderboard.graphs import FOLDER, GraphFileDict, list_files
from leaderboard.models import Entry, TracedGraph
from leaderboard.submissions import diffs
from leaderboard.submissions.diffs import Hunk
from scheduler import storage
from scheduler.models import JobFile

LISTED_FILE = f"{FOLDER}/train.json"
SELECTION = "result::item"
"""Takes one of several results of a call. It computes nothing, so pages leave it out."""
MAX_FILE_BYTES = 8 * 2**20
MAX_CALLS = 4000  # of a graph whose calls are compared line by line
MAX_OPERATORS = 40
MAX_SHARES = 8
COSTS: dict[str, tuple[str, Callable[[float], str]]] = {
    "flops_per_token": ("training FLOPs per token", partial(power, digits=3)),
    "scoring_flops_per_token": ("scoring FLOPs per token", partial(power, digits=3)),
    "parameters": ("parameters", compact),
    "stored_bytes": ("stored tensors", binary),
    "constant_bytes": ("constants", binary),
}


@dataclass(frozen=True)
class CostRow:
    """A cost beside main's. All but the name and the value may be empty."""

    name: str
    value: str
    main: str
    difference: str


@dataclass(frozen=True)
class OperatorRow:
    """How often the forward pass calls an operator."""

    name: str
    calls: int
    main_calls: int | None
    """None: there is nothing to compare with."""
    percent: float
    """Length of its bar."""

    @property
    def change(self) -> int:
        return self.calls - (self.calls if self.main_calls is None else self.main_calls)

    @property
    def signed_change(self) -> str:
        return f"{self.change:+d}".replace("-", "−") if self.change else ""


@dataclass(frozen=True)
class ShareRow:
    """A computed operator's part of the training FLOPs, in per cent."""

    name: str
    percent: float


@dataclass(frozen=True)
class GraphView:
    graph: TracedGraph
    main: TracedGraph | None
    missing_main: str
    """Why there is nothing to compare with."""
    files: list[GraphFileDict]
    costs: list[CostRow]
    capped: list[CappedValue]
    shares: list[ShareRow]
    operators: list[OperatorRow]
    changes: list[Hunk]


def build_graph_view(entry: Entry) -> GraphView | None:
    """Return the entry's newest graph on its track; None before it is traced."""
    graphs = TracedGraph.objects.select_related("entry", "season", "job", "reference__entry", "reference__season")
    graph = graphs.exclude(hash="").filter(track=entry.track, entry=entry).last()
    if graph is None:
        return None
    main = find_main_graph(graph)
    return GraphView(
        graph=graph,
        main=main,
        costs=[build_cost(name, graph, main) for name in COSTS if name in graph.summary],
        missing_main="" if main else caps.explain_missing_reference(graph),
        files=list_files(graph),
        capped=[value for value in caps.list_values(graph) if value.cap is not None],
        shares=list_shares(graph.summary),
        operators=list_operators(graph.summary, main.summary if main else None),
        changes=list_changes(graph, main) if main else [],
    )


def find_main_graph(graph: TracedGraph) -> TracedGraph | None:
    """Return the graph of the commit of main that the entry changes, else the baseline's, at the same configuration."""
    reference = graph.reference
    if reference is None or not reference.hash:
        return None
    same = TracedGraph.objects.select_related("entry").exclude(hash="").filter(entry__kind=Entry.Kind.MAIN, problem="")
    same = same.filter(track=graph.track_id, season=graph.season_id, config_hash=reference.config_hash)
    same = same.filter(summary__vocabulary_size=reference.summary["vocabulary_size"], entry__sha=graph.entry.base_sha)
    return same.exclude(entry=graph.entry_id).last() or reference


def build_cost(name: str, graph: TracedGraph, main: TracedGraph | None) -> CostRow:
    label, write = COSTS[name]
    value, reference = graph.summary[name], main.summary.get(name) if main else None
    return CostRow(
        label,
        write(value) if value else "0",
        MISSING if reference is None else write(reference) if reference else "0",
        format_change(value, reference),
    )


def format_change(value: float, reference: float | None) -> str:
    """+3.1 %, or "equal"; empty without a reference."""
    if reference is None:
        return ""
    if value == reference:
        return "equal"
    return f"{100 * (value / reference - 1):+.3g}{SPACE}%".replace("-", "−") if reference else ""


def list_shares(summary: Mapping[str, Any]) -> list[ShareRow]:
    """Return the costliest operators, forward and backward."""
    total = summary.get("flops_per_token") or 1.0
    rows = [ShareRow(cost["name"], round(100 * cost["flops_per_token"] / total, 1)) for cost in summary["operators"]]
    return [row for row in rows[:MAX_SHARES] if row.percent]


def list_operators(summary: Mapping[str, Any], main: Mapping[str, Any] | None) -> list[OperatorRow]:
    """Return the operators of the forward pass, the most frequent first, with those that only main has."""
    calls, main_calls = count_calls(summary), count_calls(main) if main else None
    most = max(calls.values(), default=0) or 1
    names = sorted({*calls, *(main_calls or {})}, key=lambda name: (-calls[name], name))
    return [
        OperatorRow(
            name, calls[name], None if main_calls is None else main_calls[name], round(100 * calls[name] / most, 1)
        )
        for name in names[:MAX_OPERATORS]
    ]


def count_calls(summary: Mapping[str, Any]) -> Counter[str]:
    found: Counter[str] = Counter()
    for part in ("features", "logits"):
        found.update(summary.get("calls", {}).get(part, {}))
    found.pop(SELECTION, None)
    return found


# --- the diff of two graphs -------------------------------------------------------------------------------------------


def list_changes(graph: TracedGraph, main: TracedGraph) -> list[Hunk]:
    """Return the differences of the lists of calls; empty where a list is missing or too long."""
    if graph.hash == main.hash:
        return []
    key = f"graph-diff:{graph.hash}:{main.hash}"
    hunks: list[Hunk] | None = cache.get(key)
    if hunks is None:
        listings = [read_listing(each) for each in (main, graph)]
        hunks = compare_listings(*listings) if all(0 < len(listing) <= MAX_CALLS for listing in listings) else []
        cache.set(key, hunks, diffs.CACHE_SECONDS)
    return hunks


def compare_listings(before: Sequence[str], after: Sequence[str]) -> list[Hunk]:
    lines = difflib.unified_diff(before, after, lineterm="", n=2)
    text = "\n".join(["diff --git a/graph b/graph", *lines])
    return [hunk for file in diffs.parse_diff(text) for hunk in file.hunks]


def read_listing(graph: TracedGraph) -> list[str]:
    """Return one line for each call of the training graph: its operator and its module."""
    file = JobFile.objects.filter(job=graph.job_id, path=LISTED_FILE).select_related("blob").first()
    if file is None or file.blob.size > MAX_FILE_BYTES:
        return []
    try:
        content = json.loads(storage.read_blob(file.blob))
        return list(describe_calls(content))
    except (ValueError, RecursionError):
        return []


def describe_calls(content: object) -> Iterator[str]:
    """Yield the calls of all graphs in the file, those of regions included."""
    if isinstance(content, Mapping):
        if isinstance(name := content.get("operator"), str):
            module = content.get("module")
            if name != SELECTION:
                yield f"{name}  {module}" if isinstance(module, str) and module else name
        for value in content.values():
            yield from describe_calls(value)
    elif isinstance(content, list):
        for value in content:
            yield from describe_calls(value)
