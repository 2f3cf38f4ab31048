"""`python -m benchmarks.flood`: a flood of pull requests, under policies and under a maintainer alone."""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import Progress

from trainer.cli import Parser

ROOT = Path(__file__).parents[2]
ARMS = ("policies", "maintainer")
KEYS = (
    *("decisions_a_day", "verdict_hours_median", "verdict_hours_p95", "gpu_hours_a_gain", "gpu_hours_a_gain_before"),
    *("gains", "gains_found", "false_records", "wrong_stops"),
)


def parse_arguments(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = Parser(prog="python -m benchmarks.flood", description=__doc__)
    parser.add_argument("--days", type=int, default=44)
    parser.add_argument("--pull-requests", type=int, default=2048)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--floods", type=int, default=1, help="with the seeds from --seed on (1)")
    parser.add_argument("--keep", type=Path, help="folder of the outcomes, which another call does not simulate again")
    parser.add_argument("--json", action="store_true", help="print the outcome as JSON and nothing else")
    parser.add_argument("--arm", choices=ARMS, help=argparse.SUPPRESS)  # of the process beside its own databases
    chosen = parser.parse_args(arguments)
    if min(chosen.days, chosen.pull_requests, chosen.floods) < 1:
        parser.error("--days, --pull-requests and --floods are at least 1")
    return chosen


def simulate_apart(chosen: argparse.Namespace, arm: str, seed: int) -> dict[str, Any]:
    """Simulate in a process with a PostgreSQL and a Redis of its own, unless its outcome is there already."""
    kept = chosen.keep / f"flood-{chosen.days}-{chosen.pull_requests}-{seed}-{arm}.json" if chosen.keep else None
    if kept and kept.exists():
        return dict(json.loads(kept.read_text()))
    words = ("--days", chosen.days, "--pull-requests", chosen.pull_requests, "--seed", seed, "--arm", arm)
    command = [ROOT / ".ci" / "with_services", sys.executable, "-m", "benchmarks.flood", *map(str, words)]
    done = subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, check=True)
    if kept:
        kept.parent.mkdir(parents=True, exist_ok=True)
        kept.write_bytes(done.stdout)
    return dict(json.loads(done.stdout))


def simulate(days: int, count: int, seed: int, arm: str) -> dict[str, Any]:
    """Simulate in this process, with the databases of DATABASE_URL and REDIS_URL."""
    import django

    os.environ |= {"DJANGO_SETTINGS_MODULE": "dailytrain.settings", "LOG_LEVEL": "ERROR", "GITHUB_TOKEN": "t"}
    django.setup()
    from benchmarks.flood.authors import DAY, draw_ideas
    from benchmarks.flood.figures import summarize
    from benchmarks.flood.simulation import Flood
    from benchmarks.flood.site import simulated_site

    ideas = draw_ideas(days, count, seed)
    with simulated_site(ideas) as clock, Progress(console=Console(stderr=True), transient=True) as progress:
        flood = Flood(clock, ideas, days, seed, by_policy=arm == "policies")
        task = progress.add_task(arm, total=days * DAY)
        flood.run(lambda seconds: progress.update(task, completed=seconds))
        return summarize(flood)


def main(arguments: Sequence[str] | None = None) -> int:
    chosen = parse_arguments(arguments)
    if chosen.arm:
        sys.stdout.write(json.dumps(simulate(chosen.days, chosen.pull_requests, chosen.seed, chosen.arm)))
        return 0
    seeds = range(chosen.seed, chosen.seed + chosen.floods)
    floods = [{arm: simulate_apart(chosen, arm, seed) for arm in ARMS} for seed in seeds]
    first = floods[0]
    report = first["policies"] | {"gpu_hours_a_gain_before": first["maintainer"]["gpu_hours_a_gain"]}
    report["false_records"] = sum(flood["policies"]["false_records"] for flood in floods)
    if chosen.json:
        sys.stdout.write(f"{json.dumps({key: report[key] for key in KEYS})}\n")
        return 0
    for name in first["policies"]:
        cells = " | ".join(str(flood[arm][name]) for flood in floods for arm in ARMS)
        sys.stdout.write(f"| {name} | {cells} |\n")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
