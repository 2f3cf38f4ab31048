"""`dailytrain compare A B --json`: compare two scored runs by paired bootstrap over their items."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Sequence
from pathlib import Path

from trainer.cli.parser import Parser
from trainer.errors import ExitCode, UserError, print_error
from trainer.scoring import items, paired_bootstrap


def main(argv: Sequence[str] | None = None) -> int:
    """Return the exit code: 0 compared, 2 bad input."""
    parser = Parser(prog="dailytrain compare", description="Compare two scored runs by paired bootstrap over items.")
    parser.add_argument("first", type=Path, metavar="A", help="items.jsonl.gz of a run (`dailytrain score --items`)")
    parser.add_argument("second", type=Path, metavar="B", help="the same file of another run")
    parser.add_argument("--json", action="store_true", help="print JSON")
    options = parser.parse_args(argv)
    try:
        differences = paired_bootstrap.compare_items(items.read_items(options.first), items.read_items(options.second))
    except UserError as error:
        return print_error("dailytrain compare", error, ExitCode.USER_ERROR)
    if options.json:
        answer = {"differences": [dataclasses.asdict(difference) for difference in differences]}
        print(json.dumps(answer))  # noqa: T201 (the command's output)
    else:
        print_table(differences)
    return ExitCode.OK


def print_table(differences: Sequence[paired_bootstrap.MetricDifference]) -> None:
    from rich.console import Console
    from rich.table import Table

    table = Table("task", "metric", "items", "A", "B", "B - A", "95 % interval", "p", box=None, pad_edge=False)
    for each in differences:
        numbers = (f"{each.first:.4f}", f"{each.second:.4f}", f"{each.difference:+.4f}")
        table.add_row(
            each.task, each.metric, f"{each.items:,}", *numbers, f"{each.low:+.4f} to {each.high:+.4f}", f"{each.p:.3f}"
        )
    Console().print(table)
