"""`dailytrain compare A B --json`: compare two scored runs by paired bootstrap over their items."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Sequence
from pathlib import Path

from trainer.cli import Parser
from trainer.scoring import items, paired_bootstrap


def main(argv: Sequence[str] | None = None) -> int:
    """Print the differences. Raise `UserError` for files that cannot be compared."""
    parser = Parser(prog="dailytrain compare", description="Compare two scored runs by paired bootstrap over items.")
    parser.add_argument("first", type=Path, metavar="A", help="items.jsonl.gz of a run (`dailytrain score --items`)")
    parser.add_argument("second", type=Path, metavar="B", help="the same file of another run")
    parser.add_argument("--json", action="store_true", help="print JSON")
    options = parser.parse_args(argv)
    differences = paired_bootstrap.compare_items(items.read_items(options.first), items.read_items(options.second))
    if options.json:
        content = {"differences": [dataclasses.asdict(difference) for difference in differences]}
        print(json.dumps(content))  # noqa: T201 (the command's output)
    else:
        print_table(differences)
    return 0


def print_table(differences: Sequence[paired_bootstrap.MetricDifference]) -> None:
    from rich.console import Console
    from rich.table import Table

    table = Table("task", "metric", "items", "A", "B", "B - A", "95 % interval", "p", box=None, pad_edge=False)
    for row in differences:
        numbers = (f"{row.first:.4f}", f"{row.second:.4f}", f"{row.difference:+.4f}")
        interval = f"{row.low:+.4f} to {row.high:+.4f}"
        table.add_row(row.task, row.metric, f"{row.items:,}", *numbers, interval, f"{row.p:.3f}")
    Console().print(table)
