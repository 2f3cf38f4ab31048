"""`manage.py simulate`: simulates the pool on a virtual clock, in a throwaway database."""

from __future__ import annotations

from json import dumps
from pathlib import Path
from typing import Any

from django.core.management.base import BaseCommand, CommandError, CommandParser
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

from scheduler.simulation.charts import draw_outcome
from scheduler.simulation.engine import simulate
from scheduler.simulation.nodes import DAY
from scheduler.simulation.statistics import Outcome
from scheduler.simulation.workload import CLASSES

MAX_NODES = 20_000
MAX_DAYS = 365


class Command(BaseCommand):
    help = "Simulate a pool under full load: the site's matching and leases, synthetic nodes and jobs, a virtual clock."
    requires_system_checks = ()

    def add_arguments(self, parser: CommandParser) -> None:
        parser.error = lambda message: parser.exit(2, f"{message}\n")  # type: ignore[method-assign]  # one line
        parser.add_argument("--nodes", type=int, default=500, help="nodes in the pool (500)")
        parser.add_argument("--days", type=float, default=30, help="days to simulate (30)")
        parser.add_argument("--seed", type=int, default=1, help="the same seed, the same outcome (1)")
        parser.add_argument("--json", action="store_true", help="print the outcome as JSON and nothing else")
        parser.add_argument("--picture", type=Path, metavar="FILE", help="draw the outcome into this SVG file")

    def handle(self, *, nodes: int, days: float, seed: int, json: bool, picture: Path | None, **_: Any) -> None:
        check_arguments(nodes, days, picture)
        columns = BarColumn(), TextColumn("{task.percentage:>3.0f} %"), TimeElapsedColumn()
        console = Console(stderr=True)
        with Progress(TextColumn("{task.description}"), *columns, console=console, transient=True) as progress:
            task = progress.add_task("simulating", total=days * DAY)
            outcome = simulate(nodes, days, seed, lambda seconds: progress.update(task, completed=seconds))
            progress.update(task, completed=days * DAY)
        if picture is not None:
            picture.write_text(draw_outcome(outcome))
        self.stdout.write(dumps(outcome.build_report()) if json else format_table(outcome))


def check_arguments(nodes: int, days: float, picture: Path | None) -> None:
    """Raise CommandError for wrong arguments, before hours are spent on a simulation."""
    if not 1 <= nodes <= MAX_NODES:
        raise CommandError(f"--nodes is {nodes}: it has to be from 1 to {MAX_NODES:,}.", returncode=2)
    if not 0 < days <= MAX_DAYS:  # also rejects nan
        raise CommandError(f"--days is {days:g}: it has to be more than 0 and at most {MAX_DAYS}.", returncode=2)
    if picture is not None and not picture.resolve().parent.is_dir():
        raise CommandError(f"--picture is {picture}: there is no such folder.", returncode=2)


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
    for name in (name for name in CLASSES if name in outcome.waits):
        row = f"{outcome.get_wait(name, 0.5):12.2f}{outcome.get_wait(name, 0.95):8.2f}{len(outcome.waits[name]):9,}"
        lines.append(f"  {name:<27}{row}")
    return "\n".join(lines)
