"""Loss of a model whose stages exchange hidden states and gradients in less than fp32, against exact mode.

    python -m benchmarks.swarm.wire_loss --corpus files:PATH --steps 200 --out wire.json

Stages are chained in one process, with each tensor encoded and decoded as `trainer.swarm.worker` does.
`fp8, by history` carries the error from one micro-batch to the next at the same position, which `trainer.swarm.wire`
does not do. All runs have the same seed and rows.
"""

from __future__ import annotations

import json
import sys
import tempfile
import time
from argparse import ArgumentParser
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from trainer.data.dataset import Dataset, prepare_dataset
from trainer.swarm.config import SwarmConfig
from trainer.swarm.data import Batches
from trainer.swarm.stage import ForwardRecord, Stage, squared_norm
from trainer.swarm.wire import FP8_WIRES, compute_scale, decode_tensor, encode_gradient, encode_hidden, round_to_fp8

LAST = 20  # Steps over which the last training loss is averaged
DEV_ROWS = 128

Encode = Callable[[Tensor, int], Tensor]  # (tensor, boundary) -> the tensor as the other stage reads it


def build_encodings() -> dict[str, tuple[Encode, Encode]]:
    """Return the encodings of hidden states and of gradients by name."""

    def through(encode: Callable[[Tensor, str], tuple[Tensor, ...]], wire: str) -> Encode:
        return lambda tensor, boundary: decode_tensor(encode(tensor, wire), wire, tensor.shape).float()

    pairs = {
        wire: (through(encode_hidden, wire), through(encode_gradient, wire)) for wire in ("fp32", "bf16", *FP8_WIRES)
    }
    history: dict[int, Tensor] = {}

    def encode_by_history(gradient: Tensor, boundary: int) -> Tensor:
        wanted = gradient + history.get(boundary, torch.zeros_like(gradient))
        scale = compute_scale(wanted)
        decoded = round_to_fp8(wanted, scale).float() * scale
        history[boundary] = wanted - decoded
        return decoded

    pairs["fp8, by history"] = pairs["fp8"][0], encode_by_history
    return pairs


def run_micro_batch(stages: Sequence[Stage], tokens: Tensor, targets: Tensor, pair: tuple[Encode, Encode]) -> float:
    """Run a micro-batch forward and backward, and accumulate its gradients. Return its nats."""
    records: list[ForwardRecord] = []
    for stage in stages:
        hidden = pair[0](records[-1].output, stage.index - 1) if records else None
        records.append(stage.forward(tokens, hidden, targets if stage.is_last else None))
    gradient = None
    for stage, record in zip(reversed(stages), reversed(records), strict=True):
        gradient, gradients = stage.backward(record, gradient)
        stage.add_gradients(gradients)
        gradient = None if gradient is None else pair[1](gradient, stage.index - 1)
    return records[-1].nats


def train(config: SwarmConfig, dataset: Dataset, pair: tuple[Encode, Encode]) -> dict[str, float]:
    """Train; return the mean training loss of the last steps and the loss on dev, in nats per target."""
    batches, losses = Batches(dataset, config), []
    stages = [Stage(config, index) for index in range(config.stages)]
    for step in range(config.steps):
        rows = (batches.get_batch(step, micro_batch) for micro_batch in range(config.micro_batches))
        losses.append(sum(run_micro_batch(stages, *row, pair) for row in rows) / batches.count_targets(step))
        means = [stage.gradient_sum * (1 / config.micro_batches) for stage in stages]
        scale = config.compute_clip_scale(sum(map(squared_norm, means)))
        for stage, mean in zip(stages, means, strict=True):
            stage.apply_update(mean, config.get_rate_factor(step), scale)
    return {"train": sum(losses[-LAST:]) / LAST, "dev": evaluate(stages, batches, pair[0])}


def evaluate(stages: Sequence[Stage], batches: Batches, encode: Encode) -> float:
    nats, count = 0.0, 0
    for tokens, targets in batches.iter_dev(DEV_ROWS):
        hidden = None
        for stage in stages[:-1]:
            hidden = encode(stage.forward(tokens, hidden, learn=False).output, stage.index)
        nats += float(stages[-1].compute_nats(tokens, hidden, targets).double().sum())
        count += int((targets >= 0).sum())
    return nats / count


def measure_once(out: Path, name: str, measure: Callable[[], dict[str, Any]]) -> None:
    """Add a result to the file unless it has one of this name, and print it."""
    started = time.monotonic()
    results: dict[str, Any] = json.loads(out.read_text()) if out.exists() else {}
    if name not in results:
        results[name] = measure()
        out.write_text(json.dumps(results, indent=1))
    sys.stdout.write(f"{name}: {results[name]} ({time.monotonic() - started:.0f} s)\n")
    sys.stdout.flush()


def main(argv: Sequence[str] | None = None) -> int:
    parser = ArgumentParser(prog="benchmarks.swarm.wire_loss", description="Loss with compressed boundaries.")
    parser.add_argument("--corpus", default="files:../shared/data/text/tinyshakespeare/input.txt")
    parser.add_argument("--arch", default="gpt")
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--stages", default="2,4")
    parser.add_argument("--width", type=int, default=128)
    parser.add_argument("--seeds", default="1")
    parser.add_argument("--wires", default=";".join(build_encodings()), help="encodings, separated by ;")
    parser.add_argument(
        "--out", type=Path, default=Path("wire.json"), help="file for the results; those in it are kept"
    )
    args = parser.parse_args(argv)
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        dataset = prepare_dataset(args.corpus, "bpe:512", Path(folder) / "dataset", 2**20)
        for stages in map(int, args.stages.split(",")):
            for seed in map(int, args.seeds.split(",")):
                for wire in args.wires.split(";"):
                    config = build_config(args.arch, args.width, stages, args.steps, seed, dataset)
                    name = f"{args.arch} {args.width}, {stages} stages, seed {seed}, {wire}"
                    measure_once(args.out, name, partial(train, config, dataset, build_encodings()[wire]))
    return 0


def build_config(arch: str, width: int, stages: int, steps: int, seed: int, dataset: Dataset) -> SwarmConfig:
    sizes = {"vocabulary_size": dataset.tokenizer.vocabulary_size, "sequence_length": 64, "depth": 4, "width": width}
    return SwarmConfig(
        arch=arch,
        model=sizes | ({} if arch == "rwkv5" else {"heads": width // 64}),
        stages=stages,
        steps=steps,
        seed=seed,
        micro_batch=4,
        micro_batches=4,
        sequence_length=64,
        learning_rate=2e-3,
        warmup_steps=10,
    )


if __name__ == "__main__":
    raise SystemExit(main())
