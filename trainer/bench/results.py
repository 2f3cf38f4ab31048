"""What a benchmark says: speed, MFU and memory of every contender, and ours over the fastest peer."""

from __future__ import annotations

import statistics
from typing import Any

from rich.console import Console
from rich.table import Column, Table

from trainer.bench.turns import Row, Turns


def results(turns: Turns, peak: float | None) -> dict[str, Any]:
    """Return the figures as plain values. `peak` is in FLOP/s; without one no MFU is told.

    A ratio is the median, over the repeats, of a contender's speed over the best peer's in the same repeat: what slowed
    a whole repeat slowed both. The best peer is the one with the best median.
    """
    measured = [row for row in turns.rows if row.tokens_per_second]
    best = max((row for row in measured if not row.spec.ours), key=lambda row: row.median, default=None)
    return {
        "contenders": [figures(row, best, peak) for row in turns.rows],
        "best_peer": best and best.spec.title,
        "ratio_to_best_peer": best_ratio(measured, "nanogpt", best),
        "modern_ratio_to_best_peer": best_ratio(measured, "gpt", best),
    }


def figures(row: Row, best: Row | None, peak: float | None) -> dict[str, Any]:
    speeds = row.tokens_per_second
    flops_per_token = row.facts.get("flops_per_token")
    return {
        "name": row.spec.title,
        "ours": row.spec.ours,
        "tokens_per_second": row.median if speeds else None,
        "tokens_per_second_each": speeds,
        "mfu": row.median * flops_per_token / peak if speeds and flops_per_token and peak else None,
        "ratio_to_best_peer": ratio(row, best),
        "parameters": row.facts.get("parameters"),
        "flops_per_token": flops_per_token,
        "peak_memory_bytes": row.facts.get("memory_bytes"),
        "first_steps_seconds": row.facts.get("first_steps_seconds"),
        "error": row.error or None,
    }


def ratio(row: Row, best: Row | None) -> float | None:
    if best is None or not row.tokens_per_second:
        return None
    pairs = zip(row.tokens_per_second, best.tokens_per_second, strict=False)
    return statistics.median(mine / theirs for mine, theirs in pairs)


def best_ratio(measured: list[Row], name: str, best: Row | None) -> float | None:
    """Return the ratio of an architecture's better form, eager or compiled."""
    found = [ratio(row, best) for row in measured if row.spec.name == name]
    return max((value for value in found if value is not None), default=None)


def show(content: dict[str, Any], console: Console) -> None:
    shape, machine = content["shape"], content["machine"]
    console.print(
        f"{content['described']}; forward, backward and optimizer; {content['repeats']} repeats of "
        f"{content['steps_per_repeat']} steps in turns, medians\n{machine['device']}, {machine['processor']}, "
        f"{shape['threads']} threads, torch {content['versions']['torch']}, {content['date']}",
        highlight=False,
        soft_wrap=True,
    )
    figures = ("tokens/s", "from", "to", "MFU", "memory", "to best peer")
    table = Table("contender", *(Column(name, justify="right") for name in figures))
    for row in content["contenders"]:
        table.add_row(row["name"], *(cells(row) if row["tokens_per_second"] else [row["error"] or "no figure"]))
    console.print(table)
    if content["peak_flops"]:
        source = content["peak_source"]
        console.print(f"MFU is of {content['peak_flops'] / 1e12:.3g} TFLOP/s: {source}", highlight=False)


def cells(row: dict[str, Any]) -> list[str]:
    speeds = row["tokens_per_second_each"]
    return [
        f"{row['tokens_per_second']:,.0f}",
        f"{min(speeds):,.0f}",
        f"{max(speeds):,.0f}",
        f"{row['mfu']:.1%}" if row["mfu"] else "",
        f"{row['peak_memory_bytes'] / 2**20:,.0f} MiB" if row["peak_memory_bytes"] else "",
        f"{row['ratio_to_best_peer']:.3f}" if row["ratio_to_best_peer"] else "",
    ]
