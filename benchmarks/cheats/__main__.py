"""Print the verdict on each cheat and each honest model: `python -m benchmarks.cheats`."""

from __future__ import annotations

import argparse
import re
import sys
import tempfile
from collections import Counter
from pathlib import Path

import torch

from benchmarks.cheats.judge import judge_all, start_tracing, trace_cases

MAX_FIGURES = 180  # characters
LOCATION = re.compile(r"^\w+\.py, line \d+ \(`.*?`\):? ")


def main() -> int:
    parser = argparse.ArgumentParser(prog="benchmarks.cheats")
    parser.add_argument("--trace", type=Path, metavar="DIR", help="only trace, in this process, and write the files")
    options = parser.parse_args()
    if options.trace:
        trace_cases(options.trace)
        return 0
    torch.set_num_threads(1)  # small models: a second thread waits more than it computes
    verdicts: Counter[str] = Counter()
    sys.stdout.write("| architecture | verdict | figures |\n|---|---|---|\n")
    with tempfile.TemporaryDirectory() as folder:
        start_tracing(Path(folder))
        for case, judgment in judge_all(Path(folder) / "files"):
            unexpected = "" if judgment.verdict == case.expected else f" (expected: {case.expected})"
            verdicts[judgment.verdict + unexpected] += 1
            figures = LOCATION.sub("", judgment.figures)[:MAX_FIGURES].replace("|", "/")
            sys.stdout.write(f"| {case.name} | {judgment.verdict}{unexpected} | {figures} |\n")
    sys.stdout.write("\n" + ", ".join(f"{name}: {count}" for name, count in verdicts.items()) + "\n")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
