"""`dailytrain compare A B --json`: is one scored run better than the other, or is it the draw of the items?"""

from __future__ import annotations

import dataclasses
import json
import sys
from collections.abc import Sequence
from pathlib import Path

from trainer.cli.parser import Parser
from trainer.scoring import items, paired_bootstrap


def main(argv: Sequence[str] | None = None) -> int:
    """Return the exit code: 0 compared, 2 bad input."""
    parser = Parser(prog="dailytrain compare", description="Compare two scored runs by paired bootstrap over items.")
    parser.add_argument("first", type=Path, metavar="A", help="items.jsonl.gz of a run (`dailytrain score --items`)")
    parser.add_argument("second", type=Path, metavar="B", help="that of another, scored on the same")
    parser.add_argument("--json", action="store_true", help="print one JSON object and nothing else")
    options = parser.parse_args(argv)
    try:
        found = paired_bootstrap.compare_items(items.read_items(options.first), items.read_items(options.second))
    except (items.ItemsError, paired_bootstrap.NoCommonItemsError) as error:
        print(f"dailytrain compare: {error}", file=sys.stderr)  # noqa: T201 (a command's error)
        return 2
    if options.json:
        answer = {"differences": [dataclasses.asdict(difference) for difference in found]}
        print(json.dumps(answer))  # noqa: T201 (the command's output)
    else:
        show(found)
    return 0


def show(found: Sequence[paired_bootstrap.MetricDifference]) -> None:
    from rich.console import Console
    from rich.table import Table

    table = Table("task", "metric", "items", "A", "B", "B - A", "95 % interval", "p", box=None, pad_edge=False)
    for each in found:
        numbers = (f"{each.first:.4f}", f"{each.second:.4f}", f"{each.difference:+.4f}")
        table.add_row(
            each.task, each.metric, f"{each.items:,}", *numbers, f"{each.low:+.4f} to {each.high:+.4f}", f"{each.p:.3f}"
        )
    Console().print(table)
