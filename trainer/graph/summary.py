"""Describe a traced architecture: operators, costs by operator and by module, parameters, state, constants."""

from __future__ import annotations

import math
from collections import Counter
from typing import Any

import torch
from rich.console import Console
from rich.table import Table

from trainer.accounting.peak_flops import H100_BYTES_PER_SECOND, H100_PEAK_FLOPS
from trainer.graph.canonical import compute_canonical_hash, count_patterns
from trainer.graph.counting import count_training_cost
from trainer.graph.files import Graph, TracedArchitecture, count_constant_bytes
from trainer.graph.initialization import Cost, count_initialization_cost
from trainer.graph.model import build_model_without_data

ROWS = 20  # of a printed table


def describe_traced(traced: TracedArchitecture) -> dict[str, Any]:
    """Return what `dailytrain graph --json` prints and the site shows.

    FLOPs are per token: of training, but for `scoring_flops_per_token`. Those of the initialization are once for a run.
    A parameter of 64 bits, such as a complex number, counts as two, one of 128 bits as four.

    Costs are those of a micro-batch of one row.
    """
    cost = count_training_cost(build_model_without_data(traced))
    initialization = count_initialization_cost(traced.initialization)
    tokens = cost.tokens_per_row
    tensors = traced.initialization.tensors
    elements = {
        kind: sum(t.number_of_elements * max(1, get_item_size(t.dtype) // 4) for t in tensors if t.kind == kind)
        for kind in ("parameter", "buffer", "non_persistent_buffer")
    }
    return {
        "hash": traced.compute_hash(),
        "canonical_hash": compute_canonical_hash(traced),
        "patterns": count_patterns(traced),
        "recipe": traced.recipe["recipe"],
        "vocabulary_size": traced.recipe["vocabulary_size"],
        "sequence_length": tokens,
        "parameters": elements["parameter"],
        "buffer_elements": elements["buffer"] + elements["non_persistent_buffer"],
        "stored_bytes": sum(t.number_of_elements * get_item_size(t.dtype) for t in tensors),
        "constant_bytes": count_constant_bytes(traced),
        "flops_per_token": cost.flops_per_token,
        "product_flops_per_token": cost.product_flops_per_token,
        "scoring_flops_per_token": cost.forward_per_row.flops / tokens,
        "initialization_flops": initialization.flops,
        "initialization_bytes": initialization.peak_bytes,
        "bytes_per_token": cost.per_row.bytes / tokens,
        "reference_seconds_per_token": estimate_reference_seconds(cost.by_operator) / tokens,
        "calls": {name: count_calls(graph) for name, graph in list_graphs(traced).items()},
        "operators": [describe_cost(name, c, tokens) for name, c in sort_costs(cost.by_operator)],
        "modules": [describe_cost(name, c, tokens) for name, c in cost.by_module.items()],
    }


def get_item_size(dtype: str) -> int:
    size: int = getattr(torch, dtype).itemsize
    return size


def list_graphs(traced: TracedArchitecture) -> dict[str, Graph]:
    return {
        "initialization": traced.initialization.graph,
        "features": traced.training.features,
        "logits": traced.training.logits,
    }


def count_calls(graph: Graph) -> dict[str, int]:
    """Return how often a graph calls each operator, the most frequent first."""
    return dict(Counter(call.name for call in graph.iterate_calls()).most_common())


def sort_costs(costs: dict[str, Cost]) -> list[tuple[str, Cost]]:
    return sorted(costs.items(), key=lambda item: -item[1].flops)


def describe_cost(name: str, cost: Cost, tokens: int) -> dict[str, Any]:
    return {"name": name, "flops_per_token": cost.flops / tokens, "bytes_per_token": cost.bytes / tokens}


def estimate_reference_seconds(costs: dict[str, Cost]) -> float:
    """Return the roofline time of one row on an H100: each operator alone, limited by arithmetic or memory.

    A compiled graph moves fewer bytes, since element-wise operators are fused.
    """
    return math.fsum(max(c.flops / H100_PEAK_FLOPS, c.bytes / H100_BYTES_PER_SECOND) for c in costs.values())


def print_summary(content: dict[str, Any]) -> None:
    """Print tables for a terminal."""
    console = Console(highlight=False)
    facts = Table(show_header=False, box=None)
    for label, text in (
        ("graph", content["hash"]),
        ("parameters", f"{content['parameters']:,}"),
        ("buffers", f"{content['buffer_elements']:,} numbers, {content['stored_bytes']:,} bytes with the parameters"),
        ("constants", f"{content['constant_bytes']:,} bytes, with what calls and recipe hold, compressed"),
        ("training", f"{content['flops_per_token']:,.0f} FLOPs a token, forward and backward"),
        ("matrix products", f"{content['product_flops_per_token'] / content['flops_per_token']:.1%} of them"),
        ("scoring", f"{content['scoring_flops_per_token']:,.0f} FLOPs a token"),
        (
            "initialization",
            f"{content['initialization_flops']:,} FLOPs once, {content['initialization_bytes']:,} bytes at one time",
        ),
        ("calls", ", ".join(f"{sum(calls.values()):,} in {name}" for name, calls in content["calls"].items())),
    ):
        facts.add_row(label, text)
    console.print(facts)
    total = math.fsum(row["flops_per_token"] for row in content["operators"])
    print_costs(console, "operator", content["operators"][:ROWS], total)
    modules = sorted(content["modules"], key=lambda module: -module["flops_per_token"])[:ROWS]
    print_costs(console, "module", modules, total)


def print_costs(console: Console, kind: str, rows: list[dict[str, Any]], total: float) -> None:
    table = Table(kind, "FLOPs a token", "share", "bytes a token", box=None, header_style="bold")
    for column in table.columns[1:]:
        column.justify = "right"
    for row in rows:
        share = row["flops_per_token"] / total if total else 0
        table.add_row(
            row["name"] or "(model)", f"{row['flops_per_token']:,.0f}", f"{share:.1%}", f"{row['bytes_per_token']:,.0f}"
        )
    console.print()
    console.print(table)
