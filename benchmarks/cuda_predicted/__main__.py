"""Predict a training step on an H100 without one.

    python -m benchmarks.cuda_predicted gpt --model.depth 24
    python -m benchmarks.cuda_predicted litgpt --model.depth 4 --cubins

Flags are those of `dailytrain train`; without flags it is the preset `daily-h100`. Prints JSON. Compiling takes
minutes at depth 24. Needs g++ and triton (`pip install triton==3.7.1`).
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from pathlib import Path

from benchmarks.cuda_predicted.fake_h100 import find_missing_program, install_fake_h100


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.cuda_predicted", description=__doc__.split("\n")[0])
    parser.add_argument("arch", help="architecture, such as gpt")
    parser.add_argument("--cubins", action="store_true", help="also compile all kernels to machine code")
    arguments, flags = parser.parse_known_args()
    if missing := find_missing_program():
        parser.error(f"{missing} is missing: install g++, and `pip install triton==3.7.1`")
    install_fake_h100()

    # After the installation, since these import torch.
    from benchmarks.cuda_predicted.cubins import compile_kernels
    from benchmarks.cuda_predicted.report import build_report
    from benchmarks.cuda_predicted.trace import trace_training

    with tempfile.TemporaryDirectory() as folder:
        step = trace_training(arguments.arch, tuple(flags), Path(folder) / "run")
        report = build_report(step)
        if arguments.cubins:
            graphs = (*step.graphs, *step.muon, *step.table_steps)
            sources = {name: source for graph in graphs for name, source in graph.kernels.items()}
            report["programs"] = compile_kernels(sources, Path(folder))
    json.dump(report, sys.stdout, indent=1)
    return 0


if __name__ == "__main__":
    sys.exit(main())
