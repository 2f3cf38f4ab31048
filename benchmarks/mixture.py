"""Print the multiplier of the mixture of experts over the dense baseline, in FLOPs and in CPU-seconds.

    python -m benchmarks.mixture [RUNS.json]

RUNS.json holds finished runs of `moe` and of `gpt`'s ladder: the output of `dailytrain try moe --json`. CPU-seconds of
a token are measured here, in turns and on one thread, so that other work on the machine affects both alike.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path

import torch

from benchmarks.contenders.base import Factors, Plan, Size
from benchmarks.contenders.ours import OurGPT
from benchmarks.contenders.results import Entry
from benchmarks.contenders.speed import measure_cpu_seconds
from benchmarks.peers import format_estimate
from trainer.scoring.multiplier import Axis, compare_entries, parse_results

BASELINE, MIXTURE = "gpt", "moe"
SIZE, ROWS, VOCABULARY = Size(2, 128, 2e12), 8, 1024  # of the runs; the budget plays no part here
UNITS: dict[Axis, str] = {"flops": "FLOPs", "seconds": "CPU-seconds"}
RUNS = Path(__file__).parent / "results" / "mixture.json"


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", nargs="?", type=Path, default=RUNS)
    runs = json.loads(parser.parse_args(argv).runs.read_text())["runs"]
    torch.set_num_threads(1)
    entries = [Entry(name, partial(OurGPT, arch=name), "") for name in (BASELINE, MIXTURE)]
    seconds = {
        name: found["median"] for name, found in measure_cpu_seconds(entries, SIZE, ROWS, VOCABULARY, False).items()
    }
    flops = {
        entry.name: entry.build(Plan(SIZE, Factors(), 1, VOCABULARY, 1, SIZE.budget)).flops_per_token
        for entry in entries
    }
    for run in runs:
        run["seconds"] = run["flops"] / flops[run["entry"]] * seconds[run["entry"]]
    sys.stdout.write(f"CPU-seconds of a token, {MIXTURE} to {BASELINE}: {seconds[MIXTURE] / seconds[BASELINE]:.3f}\n")
    for axis in UNITS:
        sys.stdout.write(f"multiplier in {UNITS[axis]}: {format_multiplier(runs, axis)}\n")
    return 0


def format_multiplier(runs: Sequence[dict[str, object]], axis: Axis) -> str:
    found = next(row for row in compare_entries(parse_results(runs), BASELINE, axis).entries if row.entry == MIXTURE)
    return format_estimate(found.to_dict())


if __name__ == "__main__":
    raise SystemExit(main())
