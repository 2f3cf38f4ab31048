"""What a swarm is compared with: a plain pipeline over torch.distributed, one process a stage, filled and drained.

    python -m tests.support.plain_pipeline CONFIG.json DATASET [--steps N]

All micro-batches go down, then all gradients come up (GPipe, arXiv 1811.06965, figure 2c). No process may come, go or
be late: whoever is lost takes the run along. Prints the losses and the seconds of its steps as one line of JSON.
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

from trainer.cli.parser import Parser
from trainer.data.dataset import Dataset
from trainer.swarm.config import SwarmConfig
from trainer.swarm.data import Batches
from trainer.swarm.stage import ForwardRecord, Stage, squared_norm

PATIENCE = timedelta(minutes=10)
"""A process that is waited for longer is gone, and the run with it."""


def train(stage: Stage, batches: Batches, steps: int) -> tuple[list[float], list[float]]:
    """Take part in so many steps as the process of this stage; return each one's loss and seconds.

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
    stage.apply(mean, config.rate(step), config.clip_scale(float(shared[0])))
    return float(shared[1]) / batches.count_targets(step)


def fill(stage: Stage, batches: Batches, step: int) -> tuple[list[ForwardRecord], float]:
    """Let all micro-batches pass; return them and their nats, 0 but at the last stage."""
    records, sent, nats = [], [], 0.0
    for micro_batch in range(stage.config.micro_batches):
        tokens, targets = batches.get_batch(step, micro_batch)
        hidden = None if stage.is_first else received(tokens, stage.input_width, stage.index - 1)
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
    """Take all gradients back up, the oldest first, so that sums are those of the reference."""
    sent = []
    for record in records:
        gradient = None if stage.is_last else received(record.tokens, stage.output_width, stage.index + 1)
        upwards, mine = stage.backward(record, gradient)
        stage.add(mine)
        if upwards is not None:
            sent.append(dist.isend(upwards.float().cpu().contiguous(), stage.index - 1))
    for sending in sent:
        sending.wait()


def received(tokens: Tensor, width: int, source: int) -> Tensor:
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
        sys.stderr.write(f"tests.support.plain_pipeline: {' '.join(str(error).split())}\n")
        return 2
    steps = options.steps or config.steps
    if options.rank is not None:
        take_part(config, batches, options.rank, options.meeting, steps)
        return 0
    with tempfile.TemporaryDirectory(prefix="pipeline-") as folder:
        meeting = Path(folder) / "meeting"
        others = [subprocess.Popen(command_of(options, rank, meeting)) for rank in range(1, config.stages)]
        try:
            losses, seconds = take_part(config, batches, 0, meeting, steps)
            codes = [other.wait() for other in others]
        finally:
            for other in others:
                other.kill()
                other.wait()
    sys.stdout.write(json.dumps({"losses": losses, "seconds": seconds}) + "\n")
    return max(codes, default=0)


def take_part(
    config: SwarmConfig, batches: Batches, rank: int, meeting: Path, steps: int
) -> tuple[list[float], list[float]]:
    """Be one of the processes, which meet in a file."""
    meet = {"init_method": f"file://{meeting}", "rank": rank, "world_size": config.stages}
    dist.init_process_group("gloo", timeout=PATIENCE, **meet)
    try:
        return train(Stage(config, rank), batches, steps)
    finally:
        dist.destroy_process_group()


def command_of(options: argparse.Namespace, rank: int, meeting: Path) -> list[str]:
    own = ("--rank", str(rank), "--meeting", str(meeting), "--steps", str(options.steps))
    return [sys.executable, "-m", "tests.support.plain_pipeline", str(options.config), str(options.dataset), *own]


def arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = Parser(prog="tests.support.plain_pipeline", description="Train in a plain pipeline, one process a stage.")
    parser.add_argument("config", type=Path, help="a swarm run's configuration, JSON")
    parser.add_argument("dataset", type=Path, help="folder of a prepared dataset")
    parser.add_argument("--steps", type=int, default=0, help="only so many")
    parser.add_argument("--rank", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--meeting", type=Path, help=argparse.SUPPRESS)
    return parser.parse_args(argv)


if __name__ == "__main__":
    raise SystemExit(main())
