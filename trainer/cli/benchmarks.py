"""`dailytrain benchmarks FOLDER`: download the evaluation data of benchmark tasks from their pinned sources."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path

from trainer.cli import Parser
from trainer.errors import ExitCode, print_error
from trainer.scoring import benchmark_tasks
from trainer.scoring.fetch_benchmarks import fetch_benchmarks

COMMAND = "dailytrain benchmarks"


def main(argv: Sequence[str] | None = None) -> int:
    """Print what failed as JSON with `--json`; return 1 if a task lacks data. Raise `UserError`."""
    parser = Parser(prog=COMMAND, description="Download evaluation data for dailytrain score --eval-data FOLDER.")
    parser.add_argument("folder", type=Path, metavar="FOLDER", help="where the files are written; kept files stay")
    parser.add_argument("--suite", default=",".join(benchmark_tasks.NAMES), help="tasks, separated by commas (all)")
    parser.add_argument("--json", action="store_true", help="print JSON")
    options = parser.parse_args(argv)
    names = [name.strip() for name in options.suite.split(",") if name.strip()]
    benchmark_tasks.check_names(names)
    failed = fetch_benchmarks(names, options.folder, print_progress)
    if options.json:
        print(json.dumps({"failed": failed}))  # noqa: T201 (the command's output)
    for name, reason in failed.items():
        print_error(COMMAND, f"{name} could not be fetched: {reason}", ExitCode.INFRASTRUCTURE)
    return ExitCode.INFRASTRUCTURE if failed else ExitCode.OK


def print_progress(line: str) -> None:
    sys.stderr.write(f"{COMMAND}: {line}\n")


if __name__ == "__main__":
    sys.exit(main())
