"""Training by two processes on one card, beside one process.

    LOCAL_RANK=0 python -m benchmarks.gpu.two_processes FLAGS    one of the two

NCCL refuses two processes on one card, so they use gloo, which sums in main memory: losses are compared, not speeds.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from collections.abc import Sequence

from trainer import train
from trainer.distributed.ports import find_free_port

PROCESSES, SECONDS = 2, 75
STRATEGIES = ("ddp", "fsdp", "zero2")


def main(flags: Sequence[str]) -> int:
    """Train as one of two processes."""
    if "cuda" in flags:
        share_card()
    return train.main(flags)


def share_card() -> None:
    """Make this process's libraries believe in two cards, both of which are the first."""
    from lightning_fabric.accelerators.cuda import CUDAAccelerator
    from lightning_fabric.strategies import ddp, model_parallel

    from trainer.distributed import devices

    devices.count_gpus = lambda: PROCESSES
    CUDAAccelerator.parse_devices = staticmethod(lambda _: [0] * PROCESSES)
    for module in (ddp, model_parallel):
        module._get_default_process_group_backend_for_device = lambda _: "gloo"


def compare_strategies() -> None:
    """The losses of the same steps by one process and by two with each strategy, compiled on a GPU."""
    from benchmarks.gpu.runs import FEW_EVALUATIONS, read_metrics
    from benchmarks.gpu.stage import emit, get_device, get_folder, is_rehearsal, wait_for_turn
    from benchmarks.gpu.steps import build_flags

    wait_for_turn()
    device = get_device().type
    size = ("--model.width", "768", "--model.heads", "6")
    flags = [*build_flags(4, 16, 4, *size, *FEW_EVALUATIONS), "--device", device]
    flags += ["--train.precision", "fp32", "--train.micro-batch", "2" if is_rehearsal() else "4"]
    flags += ["--budget", "4steps" if is_rehearsal() else "12steps", "--train.muon-precision", "fp32"]
    losses: dict[str, float] = {}
    for strategy in ("single", *STRATEGIES):
        out = get_folder() / "runs" / f"two-{strategy}"
        shutil.rmtree(out, ignore_errors=True)
        own = [*flags, "--out", str(out)]
        if strategy != "single":
            own += ["--devices", str(PROCESSES), "--train.strategy", strategy]
        code, seconds = run_together(own, 1 if strategy == "single" else PROCESSES)
        if code:
            emit(strategy=strategy, failed=f"exit code {code}")
            continue
        losses[strategy] = next(line["loss"] for line in reversed(read_metrics(out)) if "bits_per_byte" in line)
        difference = losses[strategy] - losses.get("single", float("nan"))
        emit(strategy=strategy, wall_s=round(seconds, 1), dev_loss=losses[strategy], loss_minus_single=difference)


def run_together(flags: Sequence[str], count: int) -> tuple[int, float]:
    """Run this module in `count` processes; return the first exit code but 0 (124: out of time), and seconds."""
    address = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(find_free_port()), "NODE_RANK": "0"}
    command = [sys.executable, "-m", "benchmarks.gpu.two_processes", *flags]
    started, limit = time.monotonic(), SECONDS * (3 if os.environ.get("GPU_REHEARSAL") else 1)
    processes = []
    for rank in range(count):
        own = {**address, "LOCAL_RANK": str(rank)} if count > 1 else {}
        processes.append(subprocess.Popen(command, env={**os.environ, **own}, stdout=sys.stderr, stderr=sys.stderr))
    codes = []
    for process in processes:
        try:
            codes.append(process.wait(max(1.0, limit + started - time.monotonic()) if not any(codes) else 5))
        except subprocess.TimeoutExpired:
            process.kill()
            codes.append(124)
    return next((code for code in codes if code), 0), time.monotonic() - started


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
