"""How much of its machines' work a swarm keeps: against one process doing the same, by width, shape and link.

    python -m benchmarks.swarm.efficiency --corpus files:PATH --widths 256,512,1024 --out story.json
    python -m benchmarks.swarm.efficiency --story story.json --picture docs/pictures/swarm-efficiency.svg

Measured: one process on one thread, and a swarm of two stages of one worker each, one thread each, over real sockets
and `benchmarks.swarm.link`. That is what two cores can hold. The rest is modelled (`modelled`) from what one process
was seen to do at each width, and says so. Blocks only: the vocabulary is small, so that the head is no part of it.
"""

from __future__ import annotations

import json
import sys
import tempfile
import time
from argparse import ArgumentParser
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from benchmarks.swarm.link import Links, Shape
from trainer.data.dataset import Dataset, prepare
from trainer.swarm.config import SwarmConfig
from trainer.swarm.data import Batches
from trainer.swarm.reference import Reference
from trainer.swarm.world import World

LINKS = {
    "loopback": Shape(),
    "1 Gbit/s, 5 ms": Shape(megabits=1000, milliseconds=5),
    "100 Mbit/s, 50 ms": Shape(megabits=100, milliseconds=50),
}
ROWS, LENGTH, BLOCKS, BYTES = 2, 64, 4, 2
"""Of a micro-batch; blocks of the model; bytes of a number on the wire (bf16)."""
EXCHANGES = 4
"""Times that the coordinator goes round at a step's end: ledgers, promises with votes, updates, and a spare."""


def configured(width: int, stages: int, micro_batches: int, vocabulary: int) -> SwarmConfig:
    fields = {"n_layer": BLOCKS, "n_head": width // 64, "n_embd": width, "intermediate_size": 4 * width}
    model = {"name": "efficiency", "fields": {**fields, "rotary_percentage": 1.0}}
    return SwarmConfig(
        arch="litgpt",
        model={**model, "vocabulary_size": vocabulary, "sequence_length": LENGTH},
        stages=stages,
        steps=4,
        seed=1,
        micro_batch=ROWS,
        micro_batches=micro_batches,
        sequence_length=LENGTH,
        wire="bf16",
        sums="bf16",
        checkpoint_every=100,
        audit=0.0,
    )


def alone(config: SwarmConfig, dataset: Path) -> dict[str, float]:
    """Return one process's seconds for a step, and for its update alone."""
    torch.set_num_threads(1)
    reference = Reference(config, Batches(Dataset.open(dataset), config))
    seconds = []
    for _ in range(3):
        started = time.perf_counter()
        reference.step()
        seconds.append(time.perf_counter() - started)
    zeros = [torch.zeros_like(p) for p in reference.parameters.values()]
    started = time.perf_counter()
    reference.optimizer.step(zeros, 0.0, 4)
    parameters = sum(p.numel() for p in reference.parameters.values())
    return {"step": min(seconds), "update": time.perf_counter() - started, "parameters": parameters}


def together(config: SwarmConfig, dataset: Path, shape: Shape) -> dict[str, Any]:
    """Return the seconds of a step of two stages of one worker each, over such links."""
    with Links(shape) as links:
        before = links.before if shape != Shape() else None
        with World(config, dataset, [0, 1], patience=120, links=before) as world:
            lines = world.run(280)
        seconds = [line["seconds"] for line in lines if line["kind"] == "commit"]
        return {"step": min(seconds[1:]), "steps": seconds, "carried": links.carried}


def measure(corpus: str, widths: Sequence[int], micro_batches: int) -> dict[str, Any]:
    story: dict[str, Any] = {"micro_batches": micro_batches, "widths": {}}
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder) / "dataset"
        vocabulary = prepare(corpus, "bpe:320", place, 2**20).tokenizer.vocabulary_size
        for width in widths:
            config = configured(width, 2, micro_batches, vocabulary)
            found: dict[str, Any] = {"alone": alone(config, place)}
            for name, shape in LINKS.items() if width <= 1024 else ():
                found[name] = together(config, place, shape)
                gain = found["alone"]["step"] / found[name]["step"]
                sys.stderr.write(f"width {width}, {name}: {gain:.2f} times one process, {gain / 2:.0%}\n")
            story["widths"][str(width)] = found
    return story


def modelled(
    found: dict[str, float], width: int, stages: int, workers: int, link: Shape, seen: int, micro_batches: int = 512
) -> float:
    """Return the efficiency of stages x workers machines, each as fast as the one process that was measured.

    A worker computes its share of the blocks while the link carries; each micro-batch costs it whichever is longer. The
    pipeline fills once; at the end each reads the sums of the others (all-gather up to four, then in shares), and the
    coordinator goes round. `micro_batches` of a step: 512 x 128 tokens are an eighth of GPT-2's batch. `seen`: those of
    the measured step.
    """
    whole = (found["step"] - found["update"]) / seen
    rate = link.megabits * 1e6 / 8 if link.megabits else float("inf")
    trip = link.milliseconds / 1000
    compute, carry = whole / stages, ROWS * LENGTH * width * BYTES / rate * (2 if stages > 2 else 1)
    each = max(compute, carry if stages > 1 else 0.0)
    fill = (stages - 1) * (each + trip)
    part = found["parameters"] / stages * BYTES
    read = part * (workers - 1 if workers <= 4 else 2 * (workers - 1) / workers) / rate
    step = micro_batches / workers * each + fill + read + found["update"] / stages + EXCHANGES * trip
    return (micro_batches * whole + found["update"]) / (step * stages * workers)


def main(argv: Sequence[str] | None = None) -> int:
    parser = ArgumentParser(prog="benchmarks.swarm.efficiency", description="What a swarm keeps of its machines' work.")
    parser.add_argument("--corpus", default="files:../shared/data/text/tinyshakespeare/input.txt")
    parser.add_argument("--widths", default="256,512,1024,2048")
    parser.add_argument("--micro-batches", type=int, default=8)
    parser.add_argument("--story", type=Path, help="what was measured before, instead of measuring")
    parser.add_argument("--out", type=Path, help="write what was measured there, JSON")
    parser.add_argument("--picture", type=Path, help="write the picture there, SVG")
    args = parser.parse_args(argv)
    widths = [int(width) for width in args.widths.split(",")]
    story = json.loads(args.story.read_text()) if args.story else measure(args.corpus, widths, args.micro_batches)
    if args.out:
        args.out.write_text(json.dumps(story, indent=1))
    if args.picture:
        from benchmarks.swarm.efficiency_picture import picture

        args.picture.write_text(picture(story))
    sys.stdout.write(json.dumps(table(story), indent=1) + "\n")
    return 0


def table(story: dict[str, Any]) -> dict[str, Any]:
    """Return efficiencies by width: measured for two stages of one worker, and modelled for more."""
    result: dict[str, Any] = {}
    for width, found in story["widths"].items():
        row = result[width] = {"one process, s a step": round(found["alone"]["step"], 3)}
        for name, link in LINKS.items():
            if name in found:
                row[f"2x1 {name}, measured"] = round(found["alone"]["step"] / found[name]["step"] / 2, 3)
            for stages, workers in ((2, 1), (2, 4), (4, 4), (4, 16)):
                share = modelled(found["alone"], int(width), stages, workers, link, story["micro_batches"])
                row[f"{stages}x{workers} {name}, modelled"] = round(share, 3)
    return result


if __name__ == "__main__":
    raise SystemExit(main())
