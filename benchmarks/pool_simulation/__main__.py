"""`python -m benchmarks.pool_simulation`: a pool under full load, on a virtual clock and in a throwaway database."""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

import django
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

from trainer.cli import Parser

if TYPE_CHECKING:
    from benchmarks.pool_simulation.statistics import Outcome

MAX_NODES = 20_000
MAX_DAYS = 365


def parse_arguments(arguments: Sequence[str] | None) -> argparse.Namespace:
    """Return the options; exit with one line for wrong ones, before hours are spent on a simulation."""
    parser = Parser(prog="python -m benchmarks.pool_simulation", description=__doc__)
    parser.add_argument("--nodes", type=int, default=500, help="nodes in the pool (500)")
    parser.add_argument("--days", type=float, default=30, help="days to simulate (30)")
    parser.add_argument("--seed", type=int, default=1, help="the same seed, the same outcome (1)")
    parser.add_argument("--json", action="store_true", help="print the outcome as JSON and nothing else")
    chosen = parser.parse_args(arguments)
    if not 1 <= chosen.nodes <= MAX_NODES:
        parser.error(f"--nodes is {chosen.nodes}: it has to be from 1 to {MAX_NODES:,}")
    if not 0 < chosen.days <= MAX_DAYS:  # also rejects nan
        parser.error(f"--days is {chosen.days:g}: it has to be more than 0 and at most {MAX_DAYS}")
    return chosen


def main(arguments: Sequence[str] | None = None) -> int:
    chosen = parse_arguments(arguments)
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "dailytrain.settings")
    django.setup()
    from benchmarks.pool_simulation.engine import simulate
    from benchmarks.pool_simulation.nodes import DAY

    columns = BarColumn(), TextColumn("{task.percentage:>3.0f} %"), TimeElapsedColumn()
    console = Console(stderr=True)
    with Progress(TextColumn("{task.description}"), *columns, console=console, transient=True) as progress:
        task = progress.add_task("simulating", total=chosen.days * DAY)
        outcome = simulate(
            chosen.nodes, chosen.days, chosen.seed, lambda seconds: progress.update(task, completed=seconds)
        )
    sys.stdout.write(f"{json.dumps(outcome.build_report()) if chosen.json else format_table(outcome)}\n")
    return 0


def format_table(outcome: Outcome) -> str:
    lines = [
        f"offered hours used  {outcome.utilization:8.1%}",
        f"work lost           {outcome.lost_work:8.2%}   "
        + ", ".join(f"{reason} {share:.2%}" for reason, share in outcome.lost_by_reason.items()),
        f"jobs starved        {outcome.starved:8,}",
        f"jobs done           {outcome.jobs_done:8,}   in {outcome.leases:,} leases: "
        + ", ".join(f"{count:,} {end}" for end, count in outcome.ends.items()),
        f"jobs given up       {outcome.given_up:8,}",
        f"fairness (Jain)     {outcome.fairness:8.3f}",
        "",
        "hours until a job starts           median    95 %     jobs",
    ]
    for name, waits in outcome.waits.items():
        row = f"{outcome.get_wait(name, 0.5):12.2f}{outcome.get_wait(name, 0.95):8.2f}{len(waits):9,}"
        lines.append(f"  {name:<27}{row}")
    return "\n".join(lines)


if __name__ == "__main__":
    raise SystemExit(main())
