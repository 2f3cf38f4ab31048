"""One of two processes that train together on a CPU: `python -m tests.trainer.distributed.two_processes DATASET OUT`.

For each strategy, compiled and not, it trains a whole run, and one that is stopped after some steps and resumed.
"""

from __future__ import annotations

import sys
from pathlib import Path

from tests.support.interrupted_runs import train
from tests.support.tiny import TINY, TINY_RWKV5
from tests.trainer.training.test_compiled_gradients import compile_with_zero_gradients
from trainer import errors
from trainer.training import compilation

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
"""Flags of each run in addition to `FLAGS`."""
IN_BF16 = {f"{strategy}, Muon in bf16": ("--train.strategy", strategy) for strategy in ("ddp", "fsdp", "zero2")}
"""Runs with Muon in bf16, as on CPUs with bf16 units. They depend more on the order of sums."""
WITH_OPTIONS = {
    f"{strategy}, bf16 and all options": (
        *("--train.strategy", strategy, "--train.precision", "bf16", "--train.activation-checkpointing", "true"),
        *("--train.packing", "documents", "--train.spikes", "stop", "--recipe.clip", "0.5", "--recipe.l2wrap", "1e-4"),
        *("--recipe.matrices.weight_decay", "0.1"),
    )
    for strategy in ("ddp", "fsdp", "zero2")
}
"""Runs with all options at once."""
CHUNKED = {
    f"{strategy}, chunks {gradients}": ("--train.chunk-gradients", gradients, "--train.strategy", strategy)
    for strategy, gradients in (("zero2", "truncated"), ("fsdp", "through"), ("zero2", "through"))
}
"""RWKV-5 on rows in chunks, whose state crosses passes of the sharded module."""


def get_flags(run: str) -> tuple[str, ...]:
    return (*FLAGS, "--train.muon-precision", "bf16" if "bf16" in run else "fp32")


if __name__ == "__main__":
    compilation.BACKEND = "aot_eager"
    dataset, out = sys.argv[1:]
    common = ("--devices", "2", "--dataset", dataset)
    for run, own in {**RUNS, **IN_BF16, **WITH_OPTIONS, **CHUNKED}.items():
        flags = (*get_flags(run), *common, *own)
        tiny = TINY_RWKV5 if run in CHUNKED else TINY
        assert train(Path(out) / run, *flags, tiny=tiny) == errors.ExitCode.OK
        stopped = Path(out) / f"{run}-stopped"
        assert train(stopped, *flags, tiny=tiny, stop_after=3) == errors.ExitCode.INTERRUPTED
        assert train(stopped, *flags, tiny=tiny) == errors.ExitCode.OK
    compilation.BACKEND = compile_with_zero_gradients
    flags = (*get_flags("wrong"), *common, *RUNS["fsdp, compiled"])
    assert train(Path(out) / "wrong", *flags) == errors.ExitCode.INFRASTRUCTURE
