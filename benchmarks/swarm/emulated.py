"""Efficiency of two stages over a link, with computation replaced by sleep (`benchmarks.swarm.emulated_worker`).

    python -m benchmarks.swarm.emulated --corpus files:PATH --width 1024 --wires bf16,fp8 --micro-batches 16,64

Prints a line for each step size and encoding. A busy machine disturbs this less than a measurement of computation.
"""

from __future__ import annotations

import json
import sys
import tempfile
from argparse import ArgumentParser
from collections.abc import Sequence
from pathlib import Path

from benchmarks.swarm import emulated_worker
from benchmarks.swarm.link import Links, LinkShape
from trainer.data.dataset import prepare_dataset
from trainer.swarm.config import SwarmConfig
from trainer.swarm.local_swarm import LocalSwarm

MODULE = "benchmarks.swarm.emulated_worker"
LINKS = {
    "loopback": LinkShape(),
    "1 Gbit/s, 5 ms": LinkShape(megabits=1000, milliseconds=5),
    "100 Mbit/s, 50 ms": LinkShape(megabits=100, milliseconds=50),
    "10 Mbit/s, 50 ms": LinkShape(megabits=10, milliseconds=50),
}
ROWS, LENGTH = 2, 64  # Shape of a micro-batch


def build_config(width: int, wire: str, micro_batches: int, vocabulary: int) -> SwarmConfig:
    """Return a configuration whose matrices are narrow, since their work is emulated."""
    heads = max(1, width // 64)
    fields = {"n_layer": emulated_worker.STAGES, "n_head": heads, "n_embd": width, "intermediate_size": 64}
    model = {"name": str(width), "fields": {**fields, "rotary_percentage": 1.0}}
    return SwarmConfig(
        arch="litgpt",
        model={**model, "vocabulary_size": vocabulary, "sequence_length": LENGTH},
        stages=emulated_worker.STAGES,
        steps=3,
        seed=1,
        micro_batch=ROWS,
        micro_batches=micro_batches,
        sequence_length=LENGTH,
        wire=wire,
        sums="bf16",
        checkpoint_every=100,
        audit=0.0,
    )


def measure_steps(config: SwarmConfig, dataset: Path, shape: LinkShape) -> tuple[list[float], int]:
    """Return the seconds of each step, and the bytes that crossed the links (0 on loopback)."""
    modules = dict.fromkeys(("worker-0", "worker-1"), MODULE)
    with Links(shape) as links:
        proxy = links.get_proxy_port if shape != LinkShape() else None
        with LocalSwarm(config, dataset, [0, 1], timeout=120, links=proxy, modules=modules) as swarm:
            lines = swarm.run(1200)
        return [line["seconds"] for line in lines if line["kind"] == "commit"], links.transferred


def main(argv: Sequence[str] | None = None) -> int:
    parser = ArgumentParser(prog="benchmarks.swarm.emulated", description="Efficiency with emulated computation.")
    parser.add_argument("--corpus", default="files:../shared/data/text/tinyshakespeare/input.txt")
    parser.add_argument("--width", type=int, default=1024, choices=sorted(emulated_worker.ALONE))
    parser.add_argument("--wires", default="fp32,bf16,fp8")
    parser.add_argument("--micro-batches", default="16,64")
    parser.add_argument("--link", default="100 Mbit/s, 50 ms", choices=LINKS)
    args = parser.parse_args(argv)
    shape = LINKS[args.link]
    forward, backward = emulated_worker.get_pass_seconds(args.width)
    update = emulated_worker.UPDATE * emulated_worker.PARAMETERS[args.width]
    with tempfile.TemporaryDirectory() as folder:
        dataset = Path(folder) / "dataset"
        vocabulary = prepare_dataset(args.corpus, "bpe:320", dataset, 2**20).tokenizer.vocabulary_size
        for count in map(int, args.micro_batches.split(",")):
            for wire in args.wires.split(","):
                config = build_config(args.width, wire, count, vocabulary)
                seconds, size = measure_steps(config, dataset, shape)
                alone = (forward + backward) * emulated_worker.STAGES * count + update
                efficiency = alone / emulated_worker.STAGES / min(seconds[1:])
                row = {"width": args.width, "link": args.link, "wire": wire, "micro_batches": count}
                row |= {"seconds": seconds, "alone": round(alone, 2), "efficiency": round(efficiency, 3), "bytes": size}
                sys.stdout.write(json.dumps(row) + "\n")
                sys.stdout.flush()
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
