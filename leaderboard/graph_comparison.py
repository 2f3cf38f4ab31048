"""An entry's graph for its page: costs, operators, and how it differs from a reference, main's or the baseline's."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from django.core.cache import cache

from leaderboard import caps
from leaderboard.formatting import MISSING, SPACE, binary, compact, power
from leaderboard.graph_diffs import SELECTION, GraphDiff, compare_files
from leaderboard.graphs import FOLDER, list_download_links
from leaderboard.models import Entry, TracedGraph
from leaderboard.submissions import diffs
from scheduler import storage
from scheduler.models import JobFile

TRAINING, EVALUATION, INITIALIZATION = "train.json", "eval.json", "init.json"
SECTIONS = {
    TRAINING: "Training graph",
    EVALUATION: "Evaluation graph",
    INITIALIZATION: "Initialization, constants and stored tensors",
}
TO_REFERENCE, TO_TRAINING = "the reference’s", "its training graph"
MAX_FILE_BYTES = 2 * 2**20
"""Calls of the demo's graphs have about 100 bytes each, so `graph_diffs.MAX_LINES` of them have 0.4 MB."""
CLAIM_SECONDS = 120
"""Then another request compares two graphs whose comparison did not end."""
MAX_OPERATORS = 40
MAX_SHARES = 8
GraphContents = dict[str, bytes | None]
"""Name of a file -> its content."""
COSTS: dict[str, tuple[str, Callable[[float], str]]] = {
    "flops_per_token": ("training FLOPs per token", partial(power, digits=3)),
    "scoring_flops_per_token": ("scoring FLOPs per token", partial(power, digits=3)),
    "parameters": ("trained parameters", compact),
    "stored_bytes": ("stored tensors", binary),
    "constant_bytes": ("constants and calls", binary),
}


def build_graph_view(entry: Entry) -> dict[str, Any] | None:
    """Return the entry's newest graph on its track beside its reference; None before it is traced."""
    graphs = TracedGraph.objects.select_related(
        "entry", "season", "job", "baseline_graph__entry", "baseline_graph__season"
    )
    graph = graphs.exclude(hash="").filter(track=entry.track, entry=entry).last()
    if graph is None:
        return None
    reference = find_reference(graph)
    return {
        "graph": graph,
        "reference": reference,
        "missing_reference": "" if reference else caps.explain_missing_baseline_graph(graph),
        "files": list_download_links(graph),
        "costs": [build_cost(name, graph, reference) for name in COSTS if name in graph.summary],
        "capped": [value for value in caps.list_values(graph) if value.cap is not None],
        "shares": list_shares(graph.summary),
        "operators": list_operators(graph.summary, reference.summary if reference else None),
        "sections": list_sections(graph, reference),
    }


def find_reference(graph: TracedGraph) -> TracedGraph | None:
    """Return the graph of the commit of main that the entry changes, else the baseline's, at the same configuration."""
    baseline = graph.baseline_graph
    if baseline is None or not baseline.hash:
        return None
    same = TracedGraph.objects.select_related("entry").exclude(hash="").filter(entry__kind=Entry.Kind.MAIN, problem="")
    same = same.filter(track=graph.track_id, season=graph.season_id, config_hash=baseline.config_hash)
    same = same.filter(summary__vocabulary_size=baseline.summary["vocabulary_size"], entry__sha=graph.entry.base_sha)
    return same.exclude(entry=graph.entry_id).last() or baseline


def build_cost(name: str, graph: TracedGraph, reference: TracedGraph | None) -> dict[str, str]:
    label, write = COSTS[name]
    value, compared = graph.summary[name], reference.summary.get(name) if reference else None
    return {
        "name": label,
        "value": write(value) if value else "0",
        "reference": MISSING if compared is None else write(compared) if compared else "0",
        "difference": format_change(value, compared),
    }


def format_change(value: float, reference: float | None) -> str:
    """+3.1 %, or "equal"; empty without a reference."""
    if reference is None:
        return ""
    if value == reference:
        return "equal"
    return f"{100 * (value / reference - 1):+.3g}{SPACE}%".replace("-", "−") if reference else ""


def list_shares(summary: Mapping[str, Any]) -> list[tuple[str, float]]:
    """Return the costliest operators, forward and backward, and their per cent of the training FLOPs."""
    total = summary.get("flops_per_token") or 1.0
    rows = [(cost["name"], round(100 * cost["flops_per_token"] / total, 1)) for cost in summary["operators"]]
    return [row for row in rows[:MAX_SHARES] if row[1]]


def list_operators(summary: Mapping[str, Any], reference: Mapping[str, Any] | None) -> list[dict[str, Any]]:
    """Return the operators of the forward pass, the most frequent first, with those that only the reference has."""
    calls, compared = count_calls(summary), count_calls(reference) if reference else None
    most = max(calls.values(), default=0) or 1
    names = sorted({*calls, *(compared or {})}, key=lambda name: (-calls[name], name))
    return [
        {
            "name": name,
            "calls": calls[name],
            "change": change,
            "signed_change": f"{change:+d}".replace("-", "−") if change else "",
            "percent": round(100 * calls[name] / most, 1),
        }
        for name in names[:MAX_OPERATORS]
        for change in [calls[name] - (calls if compared is None else compared)[name]]
    ]


def count_calls(summary: Mapping[str, Any]) -> Counter[str]:
    found: Counter[str] = Counter()
    for part in ("features", "logits"):
        found.update(summary.get("calls", {}).get(part, {}))
    found.pop(SELECTION, None)
    return found


# --- differences ------------------------------------------------------------------------------------------------------


def list_sections(graph: TracedGraph, reference: TracedGraph | None) -> list[tuple[str, list[GraphDiff]]] | None:
    """Return how the graph differs from the reference's, and its evaluation from its training.

    Two graphs are compared once: it takes seconds for large ones. None while another request compares them. What
    prevents a comparison is in the files, so it is stored, too.
    """
    key = f"graph-diffs:rows:{graph.hash}:{reference.hash if reference else ''}"
    sections: list[tuple[str, list[GraphDiff]]] | None = cache.get(key)
    if sections is None and cache.add(f"{key}:claim", True, CLAIM_SECONDS):
        sections = compare_graphs(read_files(graph), read_files(reference) if reference else None)
        cache.set(key, sections, diffs.CACHE_SECONDS)
    return sections


def compare_graphs(own: GraphContents, reference: GraphContents | None) -> list[tuple[str, list[GraphDiff]]]:
    sections = []
    for file, title in SECTIONS.items():
        found = []
        if reference is not None:
            found.append(compare_files(TO_REFERENCE, reference[file], own[file]))
        if file == EVALUATION:
            found.append(compare_files(TO_TRAINING, own[TRAINING], own[file]))
        if found:
            sections.append((title, found))
    return sections


def read_files(graph: TracedGraph) -> GraphContents:
    """Return the files that are compared; None for a missing or a too large one."""
    paths = {f"{FOLDER}/{name}": name for name in SECTIONS}
    files = JobFile.objects.filter(job=graph.job_id, path__in=paths, blob__size__lte=MAX_FILE_BYTES)
    contents: GraphContents = dict.fromkeys(SECTIONS)
    return contents | {paths[file.path]: storage.read_blob(file.blob) for file in files.select_related("blob")}
