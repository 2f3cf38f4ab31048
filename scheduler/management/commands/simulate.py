"""`python manage.py simulate`: the pool and its queue on a virtual clock, in a throwaway database."""

from __future__ import annotations

import json
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

MOST_NODES = 20_000
MOST_DAYS = 365


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
        check(nodes, days, picture)
        with progress() as shown:
            task = shown.add_task("simulating", total=days * DAY)
            outcome = simulate(nodes, days, seed, lambda seconds: shown.update(task, completed=seconds))
            shown.update(task, completed=days * DAY)
        if picture is not None:
            picture.write_text(draw_outcome(outcome))
        self.stdout.write(as_json(outcome) if json else table(outcome))


def check(nodes: int, days: float, picture: Path | None) -> None:
    """Refuse what cannot be simulated, before hours are spent on it."""
    if not 1 <= nodes <= MOST_NODES:
        refuse(f"--nodes is {nodes}: it has to be from 1 to {MOST_NODES:,}.")
    if not 0 < days <= MOST_DAYS:  # also not a number
        refuse(f"--days is {days:g}: it has to be more than 0 and at most {MOST_DAYS}.")
    if picture is not None and not picture.resolve().parent.is_dir():
        refuse(f"--picture is {picture}: there is no such folder.")


def refuse(sentence: str) -> None:
    raise CommandError(sentence, returncode=2)


def progress() -> Progress:
    bar = (TextColumn("{task.description}"), BarColumn(), TextColumn("{task.percentage:>3.0f} %"), TimeElapsedColumn())
    return Progress(*bar, console=Console(stderr=True), transient=True)


def as_json(outcome: Outcome) -> str:
    return json.dumps(outcome.report())


def table(outcome: Outcome) -> str:
    """Return the outcome for people."""
    lines = [
        f"offered hours used  {outcome.utilisation:8.1%}",
        f"work lost           {outcome.lost_work:8.2%}   "
        + ", ".join(f"{reason} {share:.2%}" for reason, share in outcome.lost_by_reason.items()),
        f"jobs starved        {outcome.starved:8,}",
        f"jobs done           {outcome.jobs_done:8,}   in {outcome.leases:,} leases: "
        + ", ".join(f"{count:,} {end}" for end, count in outcome.ends.items()),
        f"jobs given up       {outcome.given_up:8,}",
        f"fairness (Jain)     {outcome.fairness:8.3f}",
        "",
        "hours until a node takes a job     median    95 %     jobs",
    ]
    for name in (name for name in CLASSES if name in outcome.waits):
        row = f"{outcome.wait(name, 0.5):12.2f}{outcome.wait(name, 0.95):8.2f}{len(outcome.waits[name]):9,}"
        lines.append(f"  {name:<27}{row}")
    return "\n".join(lines)
