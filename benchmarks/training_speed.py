"""CPU-seconds of a token: our architectures in our training loop, litgpt's GPT and a plain torch GPT, in turns.

`python -m benchmarks.training_speed`; `--compile` compiles all models. One thread, fp32, rows of 256 tokens. Ours does
what the training loop does, with the gradient norm and reading the loss; the others step their optimizer only.
"""

from __future__ import annotations

import argparse
import sys
from functools import partial

import torch

from benchmarks.contenders.base import Size
from benchmarks.contenders.ours import OurGPT
from benchmarks.contenders.plain_gpt import PEERS
from benchmarks.contenders.results import Entry
from benchmarks.contenders.speed import measure_cpu_seconds

OURS = ("nanogpt", "gpt")


def main() -> int:
    parser = argparse.ArgumentParser(prog="benchmarks.training_speed", description=__doc__.partition("\n")[0])
    parser.add_argument("--depth", type=int, default=4)
    parser.add_argument("--width", type=int, default=256)
    parser.add_argument("--rows", type=int, default=8, help="of 256 tokens in a step (%(default)s)")
    parser.add_argument("--vocabulary-size", type=int, default=8192)
    parser.add_argument("--compile", action="store_true", help="compile the models")
    options = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    builders = {name: partial(OurGPT, arch=name) for name in OURS} | PEERS
    entries = [Entry(name, build, "") for name, build in builders.items()]
    size = Size(options.depth, options.width, 1.0)
    seconds = measure_cpu_seconds(entries, size, options.rows, options.vocabulary_size, options.compile)
    best = min(seconds[name]["median"] for name in PEERS)
    sys.stdout.write("| contender | CPU-microseconds a token | speed, to the best peer |\n|---|---|---|\n")
    for name, values in seconds.items():
        sys.stdout.write(f"| {name} | {values['median'] * 1e6:,.0f} | {best / values['median']:.2f} |\n")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
