"""Results of a benchmark: speed, MFU and memory of each contender, and our speed relative to the fastest peer."""

from __future__ import annotations

import statistics
from typing import Any

from rich.console import Console
from rich.table import Column, Table

from trainer.bench.round_robin import ContenderResult, RoundRobin


def build_results(round_robin: RoundRobin, peak: float | None) -> dict[str, Any]:
    """Return the results as plain values. `peak` is in FLOP/s; without it there is no MFU.

    A ratio is the median, over all repeats, of a contender's speed divided by the best peer's in the same repeat, so
    that it is independent of slow repeats. The best peer has the highest median.
    """
    measured = [row for row in round_robin.results if row.tokens_per_second]
    best = max((row for row in measured if not row.spec.is_ours), key=lambda row: row.median, default=None)
    return {
        "contenders": [build_contender_row(row, best, peak) for row in round_robin.results],
        "best_peer": best and best.spec.title,
        "ratio_to_best_peer": compute_best_ratio(measured, "nanogpt", best),
        "modern_ratio_to_best_peer": compute_best_ratio(measured, "gpt", best),
    }


def build_contender_row(row: ContenderResult, best: ContenderResult | None, peak: float | None) -> dict[str, Any]:
    speeds = row.tokens_per_second
    flops_per_token = row.facts.get("flops_per_token")
    return {
        "name": row.spec.title,
        "ours": row.spec.is_ours,
        "tokens_per_second": row.median if speeds else None,
        "tokens_per_second_each": speeds,
        "mfu": row.median * flops_per_token / peak if speeds and flops_per_token and peak else None,
        "ratio_to_best_peer": compute_ratio(row, best),
        "parameters": row.facts.get("parameters"),
        "flops_per_token": flops_per_token,
        "peak_memory_bytes": row.facts.get("memory_bytes"),
        "first_steps_seconds": row.facts.get("first_steps_seconds"),
        "error": row.error or None,
    }


def compute_ratio(row: ContenderResult, best: ContenderResult | None) -> float | None:
    if best is None or not row.tokens_per_second:
        return None
    pairs = zip(row.tokens_per_second, best.tokens_per_second, strict=False)
    return statistics.median(speed / best_speed for speed, best_speed in pairs)


def compute_best_ratio(measured: list[ContenderResult], name: str, best: ContenderResult | None) -> float | None:
    """Return the ratio of an architecture's faster form, eager or compiled."""
    ratios = [compute_ratio(row, best) for row in measured if row.spec.name == name]
    return max((value for value in ratios if value is not None), default=None)


def print_results(content: dict[str, Any], console: Console) -> None:
    shape, machine = content["shape"], content["machine"]
    console.print(
        f"{content['described']}; forward, backward and optimizer; {content['repeats']} repeats of "
        f"{content['steps_per_repeat']} steps in turns, medians\n{machine['device']}, {machine['processor']}, "
        f"{shape['threads']} threads, torch {content['versions']['torch']}, {content['date']}",
        highlight=False,
        soft_wrap=True,
    )
    columns = ("tokens/s", "from", "to", "MFU", "memory", "to best peer")
    table = Table("contender", *(Column(name, justify="right") for name in columns))
    for row in content["contenders"]:
        table.add_row(row["name"], *(format_cells(row) if row["tokens_per_second"] else [row["error"] or "no result"]))
    console.print(table)
    if content["peak_flops"]:
        source = content["peak_source"]
        console.print(f"MFU is of {content['peak_flops'] / 1e12:.3g} TFLOP/s: {source}", highlight=False)


def format_cells(row: dict[str, Any]) -> list[str]:
    speeds = row["tokens_per_second_each"]
    return [
        f"{row['tokens_per_second']:,.0f}",
        f"{min(speeds):,.0f}",
        f"{max(speeds):,.0f}",
        f"{row['mfu']:.1%}" if row["mfu"] else "",
        f"{row['peak_memory_bytes'] / 2**20:,.0f} MiB" if row["peak_memory_bytes"] else "",
        f"{row['ratio_to_best_peer']:.3f}" if row["ratio_to_best_peer"] else "",
    ]
