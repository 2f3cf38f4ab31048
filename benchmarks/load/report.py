"""Writes the page of a load measurement: requests, memory, what broke, and the cost of 10,000 nodes.

python -m benchmarks.load --doublings 4 --json load.json
python -m benchmarks.load.report load.json --core-hour 0.05 --gib-month 0.1 > benchmarks/results/load.md
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

TARGET_NODES = 10_000
TARGET_UTILIZATION = 0.5
"""Share of a core that may be busy on average, so that peaks find room."""
HOURS_OF_MONTH = 730
GIB = 2**30

SCALE_OUT = {
    "web": "Stateless. Start more processes (one per core) and machines behind the proxy; sum their connections.",
    "worker": "Stateless. Start more workers on any machine; `beat` stays one process.",
    "postgresql": "One primary. Give it a larger machine; pages are cached, so replicas relieve it little.",
    "redis": "One process on one core. Nothing in it must survive, so a second one can replace it.",
}
INTRODUCTION = """# Load of the whole site

`python -m benchmarks.load` starts PostgreSQL, Redis, web processes and a Celery worker with beat on one machine, and
sends requests over sockets. Each node sends a batch of metric points every 10 s and a heartbeat every 30 s. One idle
node for every ten polls every 10 s, with 500 jobs in the queue that it does not fit. Page views
are open-loop. `python -m benchmarks.load.report` wrote this page from its JSON."""


def build_table(head: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join("| " + " | ".join(str(cell) for cell in line) + " |" for line in lines)


def build_page(found: dict[str, Any], core_hour: float | None = None, gib_month: float | None = None) -> str:
    title = f"Measured {found['measured_at']} with {found['web_processes']} web processes on {found['cores']} cores, "
    parts = [INTRODUCTION, f"{title}{found['points']} points in a batch, {found['seconds']:g} s a round."]
    parts += ["## Requests", build_request_table(found["rounds"])]
    parts += ["## What breaks first", describe_limit(found)]
    parts += ["## Memory", "MiB, with shared memory in proportion.", build_memory_table(found["rounds"])]
    sound = find_largest_passing_round(found)
    if sound is not None:
        parts += [f"## {TARGET_NODES:,} nodes", *build_cost(sound, core_hour, gib_month)]
    return "\n\n".join(parts) + "\n"


def build_request_table(rounds: list[dict[str, Any]]) -> str:
    head = ["nodes", "pages/s", "request", "sent", "median, ms", "p95, ms", "p99, ms", "p95 by quarter, ms", "errors"]
    rows = []
    for row in rounds:
        for kind, times in sorted(row["kinds"].items()):
            errors = sum(count for name, count in row["errors"].items() if name.startswith(f"{kind}:"))
            quarters = ", ".join(f"{value:g}" for value in times["p95_ms_by_quarter"])
            values = (times["p50_ms"], times["p95_ms"], times["p99_ms"], quarters, errors)
            rows.append((f"{row['nodes']:,}", f"{row['pages_per_second']:g}", kind, f"{times['requests']:,}", *values))
    return build_table(head, rows)


def build_memory_table(rounds: list[dict[str, Any]]) -> str:
    head = ["nodes", "part", "processes", "start", "end", "highest", "first quarter", "last quarter"]
    rows = [
        (f"{row['nodes']:,}", name, memory["processes"], memory["start"], memory["end"], memory["highest"],
         memory["first_quarter"], memory["last_quarter"])
        for row in rounds for name, memory in row["memory_mib"].items()
    ]  # fmt: skip
    return build_table(head, rows)


def describe_limit(found: dict[str, Any]) -> str:
    last = found["rounds"][-1]
    busy = {name: value / last["wall_seconds"] for name, value in last["cpu_seconds"].items()}
    busy["load generator"] = last["generator_cpu_seconds"] / last["wall_seconds"]
    used = ", ".join(f"{name} {cores:.2f}" for name, cores in sorted(busy.items(), key=lambda item: -item[1]))
    broke = f"At {last['nodes']:,} nodes: {found['broke']}." if found["broke"] else "Nothing broke."
    log = "\n\n```\n" + "\n".join(found["log"]) + "\n```" if found["log"] else ""
    return f"{broke} Cores in use in the last round: {used}; {sum(busy.values()):.2f} of {found['cores']}.{log}"


def find_largest_passing_round(found: dict[str, Any]) -> dict[str, Any] | None:
    sound = found["rounds"][:-1] if found["broke"] else found["rounds"]
    return sound[-1] if sound else None


def estimate_cores(row: dict[str, Any]) -> dict[str, float]:
    """Return the cores that each component needs for 10,000 nodes, and page views in proportion.

    cores = CPU seconds / wall seconds * (10,000 / nodes) / TARGET_UTILIZATION. Idle work (Celery beat, pages) is scaled
    too, so this is an upper bound where it dominates.
    """
    factor = TARGET_NODES / row["nodes"] / TARGET_UTILIZATION / row["wall_seconds"]
    return {name: value * factor for name, value in row["cpu_seconds"].items()}


def build_cost(row: dict[str, Any], core_hour: float | None, gib_month: float | None) -> list[str]:
    cores, month = estimate_cores(row), TARGET_NODES / row["nodes"] / row["wall_seconds"] * HOURS_OF_MONTH * 3600
    stored, received, sent = (row[name] * month / GIB for name in ("database_bytes", "request_bytes", "response_bytes"))
    table = build_table(
        ["part", "cores", *(["a month"] if core_hour else []), "how it scales out"],
        [
            (name, f"{value:.1f}", *([f"{value * HOURS_OF_MONTH * core_hour:,.0f}"] if core_hour else []), way)
            for name, value in cores.items() for way in [SCALE_OUT[name]]
        ],
    )  # fmt: skip
    pages = row["pages_per_second"] * TARGET_NODES / row["nodes"]
    origin = (
        f"From the round with {row['nodes']:,} nodes, at {TARGET_UTILIZATION:.0%} load of each core and {pages:g} page"
    )
    growth = f"The database grows by {stored:,.0f} GiB a month before retention. Nodes send {received:,.0f} GiB and the"
    lines = [
        f"{origin} views a second. Cores: {sum(cores.values()):.1f}.",
        table,
        f"{growth} site {sent:,.0f} GiB a month, without checkpoints.",
    ]
    if core_hour:
        total = sum(cores.values()) * HOURS_OF_MONTH * core_hour + stored * (gib_month or 0)
        prices = f"{core_hour:g} a core-hour" + (f" and {gib_month:g} a GiB-month of disk" if gib_month else "")
        lines.append(f"**{total:,.0f} a month** at {prices}, {total / TARGET_NODES:.4f} a node; without traffic.")
    return lines


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.load.report", description=__doc__)
    parser.add_argument("file", type=Path, help="what `python -m benchmarks.load --json FILE` wrote")
    parser.add_argument("--core-hour", type=float, help="price of a core-hour")
    parser.add_argument("--gib-month", type=float, help="price of a GiB of disk for a month")
    options = parser.parse_args()
    found = json.loads(options.file.read_text())
    print(build_page(found, options.core_hour, options.gib_month), end="")  # noqa: T201


if __name__ == "__main__":
    main()
