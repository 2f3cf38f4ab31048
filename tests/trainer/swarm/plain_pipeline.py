"""A plain GPipe pipeline over torch.distributed, one process per stage, to compare a swarm with.

    python -m tests.trainer.swarm.plain_pipeline CONFIG.json DATASET [--steps N]

All micro-batches run forward, then all run backward (arXiv 1811.06965, figure 2c). If one process dies the run ends.
Prints the losses and the seconds of its steps as one line of JSON.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist
from pydantic import ValidationError
from torch import Tensor

from trainer.data.dataset import Dataset
from trainer.swarm.config import SwarmConfig
from trainer.swarm.data import Batches
from trainer.swarm.stage import ForwardRecord, Stage, squared_norm

TIMEOUT = timedelta(minutes=10)
"""Timeout of a wait for another process."""


def train(stage: Stage, batches: Batches, steps: int) -> tuple[list[float], list[float]]:
    """Run the process of this stage for `steps` steps; return each step's loss and seconds.

    The default process group has one process a stage, in their order.
    """
    losses, seconds = [], []
    for step in range(steps):
        started = time.perf_counter()
        losses.append(train_step(stage, batches, step))
        seconds.append(time.perf_counter() - started)
    return losses, seconds


def train_step(stage: Stage, batches: Batches, step: int) -> float:
    config = stage.config
    records, nats = fill(stage, batches, step)
    drain(stage, records)
    mean = stage.gradient_sum * (1 / config.micro_batches)
    shared = torch.tensor([squared_norm(mean), nats], dtype=torch.float64)
    dist.all_reduce(shared)  # of all stages: the squared norms, and the last one's nats
    stage.apply_update(mean, config.get_rate_factor(step), config.compute_clip_scale(float(shared[0])))
    return float(shared[1]) / batches.count_targets(step)


def fill(stage: Stage, batches: Batches, step: int) -> tuple[list[ForwardRecord], float]:
    """Run all forward passes; return their records and the sum of nats (0 before the last stage)."""
    records, sent, nats = [], [], 0.0
    for micro_batch in range(stage.config.micro_batches):
        tokens, targets = batches.get_batch(step, micro_batch)
        hidden = None if stage.is_first else receive_hidden(tokens, stage.input_width, stage.index - 1)
        record = stage.forward(tokens, hidden, targets if stage.is_last else None)
        records.append(record)
        if stage.is_last:
            nats += record.nats
        else:
            sent.append(dist.isend(record.output.float().cpu().contiguous(), stage.index + 1))
    for sending in sent:
        sending.wait()
    return records, nats


def drain(stage: Stage, records: list[ForwardRecord]) -> None:
    """Run all backward passes, the oldest first, as in a single process."""
    sent = []
    for record in records:
        gradient = None if stage.is_last else receive_hidden(record.tokens, stage.output_width, stage.index + 1)
        upwards, mine = stage.backward(record, gradient)
        stage.add_gradients(mine)
        if upwards is not None:
            sent.append(dist.isend(upwards.float().cpu().contiguous(), stage.index - 1))
    for sending in sent:
        sending.wait()


def receive_hidden(tokens: Tensor, width: int, source: int) -> Tensor:
    """Wait for a tensor `[B, T, width]` from another stage."""
    found = torch.empty(*tokens.shape, width)
    dist.recv(found, source)
    return found


# --- its processes ----------------------------------------------------------------------------------------------------


def main(argv: Sequence[str] | None = None) -> int:
    options = arguments(argv)
    try:
        config = SwarmConfig.model_validate_json(options.config.read_bytes())
        batches = Batches(Dataset.open(options.dataset), config)
    except (OSError, ValidationError, ValueError) as error:
        sys.stderr.write(f"tests.trainer.swarm.plain_pipeline: {' '.join(str(error).split())}\n")
        return 2
    steps = options.steps or config.steps
    if options.rank is not None:
        run_process(config, batches, options.rank, options.rendezvous, steps)
        return 0
    with tempfile.TemporaryDirectory(prefix="pipeline-") as folder:
        rendezvous = Path(folder) / "rendezvous"
        others = [subprocess.Popen(build_command(options, rank, rendezvous)) for rank in range(1, config.stages)]
        try:
            losses, seconds = run_process(config, batches, 0, rendezvous, steps)
            codes = [other.wait() for other in others]
        finally:
            for other in others:
                other.kill()
                other.wait()
    sys.stdout.write(json.dumps({"losses": losses, "seconds": seconds}) + "\n")
    return max(codes, default=0)


def run_process(
    config: SwarmConfig, batches: Batches, rank: int, rendezvous: Path, steps: int
) -> tuple[list[float], list[float]]:
    """Run one of the processes, which rendezvous through a file."""
    meet = {"init_method": f"file://{rendezvous}", "rank": rank, "world_size": config.stages}
    dist.init_process_group("gloo", timeout=TIMEOUT, **meet)
    try:
        return train(Stage(config, rank), batches, steps)
    finally:
        dist.destroy_process_group()


def build_command(options: argparse.Namespace, rank: int, rendezvous: Path) -> list[str]:
    own = ("--rank", str(rank), "--rendezvous", str(rendezvous), "--steps", str(options.steps))
    return [sys.executable, "-m", "tests.trainer.swarm.plain_pipeline", str(options.config), str(options.dataset), *own]


def arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="tests.trainer.swarm.plain_pipeline", description="Train in a plain pipeline, one process a stage."
    )
    parser.add_argument("config", type=Path, help="a swarm run's configuration, JSON")
    parser.add_argument("dataset", type=Path, help="folder of a prepared dataset")
    parser.add_argument("--steps", type=int, default=0, help="only so many")
    parser.add_argument("--rank", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--rendezvous", type=Path, help=argparse.SUPPRESS)
    return parser.parse_args(argv)


if __name__ == "__main__":
    raise SystemExit(main())
