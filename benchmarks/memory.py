"""What an n-gram memory adds to a training step, by the number of its rows.

    python -m benchmarks.memory --json results.json

A step reads bigrams and trigrams of random tokens, so that nearly every row is another: the worst case. It then sums
their gradients, measures the norm and steps the rows. Seconds are CPU time of one thread, or of a GPU. Larger tables
cost more only as far as caches no longer hold them.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from trainer.distributed.devices import compute_gradient_norm
from trainer.models.base import ParameterGroup, Recipe
from trainer.models.ngram_memory import NGramMemory
from trainer.ops.devices import synchronize
from trainer.optim.optimizers import build_optimizers

ORDERS = (2, 3)
SEQUENCE_LENGTH, VOCABULARY = 256, 4096
WARMUP = 3  # steps that are not timed


def main(argv: Sequence[str] | None = None) -> int:
    options = parse_arguments(argv)
    torch.set_num_threads(1)
    torch.manual_seed(0)
    rows = []
    for exponent in options.exponents:
        row = measure(2**exponent, options)
        rows.append(row)
        sys.stdout.write(f"2^{exponent} rows, {row['bytes'] / 1e6:,.0f} MB: {row['seconds'] * 1e3:.2f} ms a step\n")
    if options.json is not None:
        options.json.write_text(json.dumps({"device": options.device, "torch": torch.__version__, "rows": rows}))
    return 0


def measure(rows: int, options: argparse.Namespace) -> dict[str, Any]:
    """Return the median seconds of a step on a table with this many rows in all."""
    device = torch.device(options.device)
    memory = NGramMemory(torch.full((rows, 1, options.width), 0.01, device=device), ORDERS)
    group = ParameterGroup("memory", ("table",), "row_adagrad", 0.01)
    (optimizer,) = build_optimizers(memory, Recipe((group,)))
    optimizer.state[memory.table]["square"].fill_(1.0)  # every page of both tensors is there before a step is timed
    seconds = []
    for _ in range(WARMUP + options.steps):
        tokens = torch.randint(VOCABULARY, (options.tokens // SEQUENCE_LENGTH, SEQUENCE_LENGTH), device=device)
        gradient = torch.randn(*tokens.shape, 1, options.width, device=device)
        started = read_clock(device)
        memory(tokens).backward(gradient)
        compute_gradient_norm([memory.table])
        optimizer.step()
        optimizer.zero_grad()
        seconds.append(read_clock(device) - started)
    return {
        "rows": rows,
        "width": options.width,
        "tokens": options.tokens,
        "bytes": memory.table.nbytes,
        "seconds": statistics.median(seconds[WARMUP:]),
    }


def read_clock(device: torch.device) -> float:
    """Return the process's CPU time, or wall-clock time once a GPU has finished."""
    if device.type == "cpu":
        return time.process_time()
    synchronize(device)
    return time.perf_counter()


def parse_arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--exponents", type=int, nargs="+", default=[16, 18, 20, 22, 24, 26], help="of 2, for the rows")
    parser.add_argument("--width", type=int, default=16, help="channels of a row: 2^26 rows of 16 take 4.6 GB")
    parser.add_argument("--tokens", type=int, default=4096, help="of a step")
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--json", type=Path, help="file for the results")
    return parser.parse_args(argv)


if __name__ == "__main__":
    raise SystemExit(main())
