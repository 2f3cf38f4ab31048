"""What a person sees of a smoke run: a line for each check as it is decided, then what to do next."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from trainer.smoke.findings import CHECKS, SmokeCheck

WAITING = {
    "starts": "importing it, building a small one",
    "fits": "counting its full size",
    "learns": "training a small one",
    "causal": "asking it about text that ends early",
}


@contextmanager
def show_checks(options: argparse.Namespace) -> Iterator[Callable[[SmokeCheck], None]]:
    """Yield what is told of each check. With --json, or as a job, nothing is shown."""
    if options.json or options.job:
        yield lambda check: None
        return
    console = Console()
    console.print(f"[bold]{options.arch}[/], smoke run on this machine's CPU\n", highlight=False)
    with console.status(waiting(CHECKS[0]), spinner="dots") as status:

        def show(check: SmokeCheck) -> None:
            console.print(line(check))
            after = CHECKS.index(check.name) + 1
            if check.passed and after < len(CHECKS):
                status.update(waiting(CHECKS[after]))

        yield show


def waiting(name: str) -> str:
    return f"[dim]{name:8}{WAITING[name]} …[/]"


def line(check: SmokeCheck) -> Table:
    """A check with its text beside it, and of a failed one the line of code."""
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
    """Say what to do next."""
    console = Console()
    for hint in record["hints"]:
        console.print(Text(f"  note: {hint}", "yellow"))
    if record["passed"]:
        console.print(f"\n[bold green]Ready.[/] {record['seconds']:.0f} s. Next: ", end="", highlight=False)
        console.print(f"[bold]dailytrain try {arch}[/] for its multiplier, or a pull request.", highlight=False)
    else:
        console.print("\n[bold]Not yet.[/] The same command tells whether it is mended.", highlight=False)
