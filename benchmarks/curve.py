"""The curve of a run, as a table: `python -m benchmarks.curve RUN`."""

from __future__ import annotations

import json
import sys
from pathlib import Path

from rich.console import Console
from rich.table import Column, Table


def main(argv: list[str]) -> int:
    lines = [json.loads(line) for line in (Path(argv[0]) / "metrics.jsonl").read_text().splitlines()]
    names = ("seconds", "tokens", "FLOPs", "dev loss", "bits per byte")
    table = Table(*(Column(name, justify="right") for name in names), title=argv[0])
    for line in lines:
        if line["kind"] == "dev":
            figures = (f"{line['seconds']:.1f}", f"{line['tokens']:,}", f"{line['flops']:.3g}")
            table.add_row(*figures, f"{line['loss']:.4f}", f"{line['bits_per_byte']:.4f}")
    Console().print(table)
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
