"""`python -m benchmarks.flood`: a flood of pull requests, under policies and under a maintainer alone."""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.progress import Progress

from trainer.cli import Parser

if TYPE_CHECKING:
    from benchmarks.flood.authors import Idea

ROOT = Path(__file__).parents[2]
ARMS = ("policies", "maintainer")
KEYS = (
    *("decisions_a_day", "verdict_hours_median", "verdict_hours_p95", "gpu_hours_a_gain"),
    *("gains", "gains_found", "false_records", "wrong_stops"),
)


def parse_arguments(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = Parser(prog="python -m benchmarks.flood", description=__doc__)
    parser.add_argument("--days", type=int, default=44, help="pull requests come until a day before the end (44)")
    parser.add_argument("--pull-requests", type=int, default=2048)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--floods", type=int, default=1, help="with the seeds from --seed on (1)")
    parser.add_argument("--json", action="store_true", help="print the outcome as JSON and nothing else")
    parser.add_argument("--arm", choices=ARMS, help=argparse.SUPPRESS)  # of the process beside its own databases
    chosen = parser.parse_args(arguments)
    if chosen.days < 2 or min(chosen.pull_requests, chosen.floods) < 1:
        parser.error("--days is at least 2, --pull-requests and --floods at least 1")
    return chosen


def simulate_apart(chosen: argparse.Namespace, arm: str) -> list[dict[str, Any]]:
    """Simulate the floods, each in a process with a PostgreSQL and a Redis of its own."""
    words = ("--days", chosen.days, "--pull-requests", chosen.pull_requests, "--arm", arm, "--seed")
    command = [ROOT / ".ci" / "with_services", sys.executable, "-m", "benchmarks.flood", *map(str, words)]
    seeds = range(chosen.seed, chosen.seed + chosen.floods)
    calls = (subprocess.run([*command, str(seed)], cwd=ROOT, stdout=subprocess.PIPE, check=True) for seed in seeds)
    return [json.loads(call.stdout) for call in calls]


def simulate(ideas: list[Idea], days: int, seed: int, arm: str) -> dict[str, Any]:
    """Simulate in this process, with the databases of DATABASE_URL and REDIS_URL."""
    from benchmarks.flood.authors import DAY
    from benchmarks.flood.figures import sum_up
    from benchmarks.flood.simulation import Flood
    from benchmarks.flood.site import simulated_site

    with simulated_site(ideas) as clock, Progress(console=Console(stderr=True), transient=True) as progress:
        flood = Flood(clock, ideas, days, seed, by_policy=arm == "policies")
        task = progress.add_task(arm, total=days * DAY)
        flood.run(lambda seconds: progress.update(task, completed=seconds))
        return sum_up(flood)


def main(arguments: Sequence[str] | None = None) -> int:
    import django

    chosen = parse_arguments(arguments)
    os.environ |= {"DJANGO_SETTINGS_MODULE": "dailytrain.settings", "LOG_LEVEL": "ERROR", "GITHUB_TOKEN": "t"}
    django.setup()
    from benchmarks.flood.authors import draw_ideas
    from benchmarks.flood.figures import report

    if chosen.arm:
        ideas = draw_ideas(chosen.days - 1, chosen.pull_requests, chosen.seed)
        sys.stdout.write(json.dumps(simulate(ideas, chosen.days, chosen.seed, chosen.arm)))
        return 0
    with ThreadPoolExecutor(len(ARMS)) as pool:
        policies, maintainer = (report(floods) for floods in pool.map(lambda arm: simulate_apart(chosen, arm), ARMS))
    figures = {key: policies[key] for key in KEYS} | {"gpu_hours_a_gain_before": maintainer["gpu_hours_a_gain"]}
    if chosen.json:
        sys.stdout.write(json.dumps(figures | {"policies": policies, "maintainer": maintainer}, indent=1) + "\n")
        return 0
    for name, value in policies.items():
        sys.stdout.write(f"| `{name}` | {value} | {maintainer[name]} |\n")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
