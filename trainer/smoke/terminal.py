"""Terminal output of a smoke test: one line per check as it is decided, then what to do next."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from trainer.smoke.findings import CHECKS, SmokeCheck

DURATION = "About a minute of CPU time, more for recurrent models; other programs on this machine make it longer."
ACTIVITIES = {
    "starts": "importing and tracing it, building a small one",
    "fits": "counting its full size",
    "learns": "training a small one",
    "causal": "checking that it does not look ahead",
}


@contextmanager
def show_checks(options: argparse.Namespace) -> Iterator[Callable[[SmokeCheck], None]]:
    """Yield a function that prints a check: with --json on standard error, as a job nowhere."""
    if options.json or options.job:
        yield lambda check: None if options.job else print_progress(check)
        return
    console = Console()
    console.print(f"[bold]{options.arch}[/], smoke test on this machine's CPU", highlight=False)
    console.print(f"{DURATION}\n", style="dim", highlight=False)
    with console.status(format_activity(CHECKS[0]), spinner="dots") as status:

        def print_check(check: SmokeCheck) -> None:
            console.print(format_check(check))
            after = CHECKS.index(check.name) + 1
            if check.passed and after < len(CHECKS):
                status.update(format_activity(CHECKS[after]))

        yield print_check


def print_progress(check: SmokeCheck) -> None:
    sys.stderr.write(f"{CHECKS.index(check.name) + 1} of {len(CHECKS)}  {check.name}: {check.text}\n")


def format_activity(name: str) -> str:
    return f"[dim]{name:8}{ACTIVITIES[name]} …[/]"


def format_check(check: SmokeCheck) -> Table:
    """Return a row with the check and its text, and below it the failed line of code."""
    table = Table.grid(padding=(0, 2, 0, 0))
    table.add_column(width=1)
    table.add_column(width=6)
    table.add_column(overflow="fold")
    mark = Text("✓", "green") if check.passed else Text("✗", "bold red")
    table.add_row(mark, Text(check.name, "bold"), Text(check.text))
    if check.code:
        code = Text(f"{check.line:>4} │ ", "dim")
        table.add_row("", "", code.append(check.code, "yellow"))
    return table


def print_conclusion(arch: str, record: dict[str, Any]) -> None:
    """Print the hints and what to do next."""
    console = Console()
    for hint in record["hints"]:
        console.print(Text(f"  note: {hint}", "yellow"))
    if record["passed"]:
        used = f"{record['seconds']:.0f} s, with {sum(os.times()[:4]):.0f} s of CPU time"
        console.print(f"\n[bold green]Ready.[/] {used}. Next: ", end="", highlight=False)
        console.print(f"[bold]dailytrain try {arch}[/] for its multiplier, or a pull request.", highlight=False)
    else:
        console.print("\n[bold]Not yet.[/] Fix it and run the same command again.", highlight=False)
