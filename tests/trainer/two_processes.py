"""One of two processes that train together on a CPU, again and again: `python two_processes.py DATASET OUT`.

For each strategy, translated by torch.compile and not, it trains a whole run, and one that is stopped after some steps
and goes on.
"""

from __future__ import annotations

import sys
from pathlib import Path

import torch
from stopping import train

from trainer import compilation, failures, muon

FLAGS = (
    *("--budget", "6steps", "--train.micro-batch", "1", "--checkpoint-every", "1000steps"),
    *("--train.evaluations", "1", "--train.dev-tokens", "64", "--train.sample-tokens", "2"),
)
RUNS = {
    f"{strategy}{', compiled' if compiled else ''}": (
        *("--train.strategy", strategy),
        *(("--train.compile", "true") if compiled else ()),
    )
    for strategy in ("ddp", "fsdp")
    for compiled in (False, True)
} | {"zero2": ("--train.strategy", "zero2")}
"""What each run has besides."""


def in_fp32(device: str) -> torch.dtype:
    """In place of `muon.units`: bf16 would make more of the order of sums than a wrong sum."""
    return torch.float32


if __name__ == "__main__":
    muon.units = in_fp32
    compilation.BACKEND = "aot_eager"
    dataset, out = sys.argv[1:]
    for run, own in RUNS.items():
        flags = (*FLAGS, "--devices", "2", "--dataset", dataset, *own)
        assert train(Path(out) / run, *flags) == failures.DONE
        assert train(Path(out) / f"{run}-stopped", *flags, stop_after=3) == failures.INTERRUPTED
        assert train(Path(out) / f"{run}-stopped", *flags) == failures.DONE
