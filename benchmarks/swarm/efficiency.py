"""How much of its machines' work a swarm keeps: against one process doing the same, by width, shape and link.

    python -m benchmarks.swarm.efficiency --corpus files:PATH --widths 256,512,1024 --out story.json
    python -m benchmarks.swarm.efficiency --story story.json --picture docs/pictures/swarm-efficiency.svg

Measured: one process on one thread, and a swarm of two stages of one worker each, one thread each, over real sockets
and `benchmarks.swarm.link`. That is what two cores can hold. Steps of few and of many micro-batches tell what each
micro-batch costs from what each step costs besides (the pipeline's filling, the update, the agreement on it). The rest
is modelled from those costs (`modelled`), and says so. Blocks only: the vocabulary is small, so that the head is no
part of it.
"""

from __future__ import annotations

import json
import sys
import tempfile
import time
from argparse import ArgumentParser
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from benchmarks.swarm.link import Links, Shape
from trainer.data.dataset import Dataset, prepare_dataset
from trainer.ops.heap import keep_freed_memory
from trainer.swarm.config import SwarmConfig
from trainer.swarm.data import Batches
from trainer.swarm.local_swarm import LocalSwarm
from trainer.swarm.single_process import SingleProcessRun
from trainer.swarm.stage import build_model

LINKS = {
    "loopback": Shape(),
    "1 Gbit/s, 5 ms": Shape(megabits=1000, milliseconds=5),
    "100 Mbit/s, 50 ms": Shape(megabits=100, milliseconds=50),
}
FEW, MANY = 4, 16
"""Micro-batches of the steps that are measured."""
USUAL = 512
"""Micro-batches of the steps that are modelled: times 128 tokens an eighth of GPT-2's batch."""
ROWS, LENGTH, BLOCKS, BYTES = 2, 64, 4, 2
"""Of a micro-batch; blocks of the model; bytes of a number on the wire (bf16)."""
DAEMON = 79e6
"""Bytes a second, one way: what a stream through two daemons carried on two cores, encrypted, however fast the link."""
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


def costs(few: float, many: float) -> dict[str, float]:
    """Return the seconds of a micro-batch and of a step besides, given those of steps of `FEW` and `MANY`."""
    each = (many - few) / (MANY - FEW)
    return {"few": few, "many": many, "micro_batch": each, "step": max(0.0, few - FEW * each)}


def alone(config: SwarmConfig, dataset: Path) -> float:
    """Return one process's seconds for a step."""
    torch.set_num_threads(1)
    keep_freed_memory(single_arena=True)  # as workers do
    reference = SingleProcessRun(config, Batches(Dataset.open(dataset), config))
    took = []
    for _ in range(3):
        started = time.perf_counter()
        reference.run_step()
        took.append(time.perf_counter() - started)
    return min(took)


def together(config: SwarmConfig, dataset: Path, shape: Shape) -> float:
    """Return the seconds of a step of two stages of one worker each, over such links."""
    with Links(shape) as links:
        before = links.before if shape != Shape() else None
        with LocalSwarm(config, dataset, [0, 1], timeout=120, links=before) as swarm:
            lines = swarm.run(1200)
        return min([line["seconds"] for line in lines if line["kind"] == "commit"][1:])


def measure(corpus: str, widths: Sequence[int], links: Sequence[str], out: Path) -> dict[str, Any]:
    """Return, by width, what one process takes and what two stages take over each link; what `out` has stays."""
    story = json.loads(out.read_text()) if out.exists() else {}
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder) / "dataset"
        vocabulary = prepare_dataset(corpus, "bpe:320", place, 2**20).tokenizer.vocabulary_size
        for width, name in ((width, name) for width in widths for name in ("alone", *links)):
            row = story.setdefault(str(width), {})
            if name not in row:
                few, many = (configured(width, 2, count, vocabulary) for count in (FEW, MANY))
                row["parameters"] = sum(p.numel() for p in build_model(few).parameters())
                row[name] = costs(*(seconds(config, place, name) for config in (few, many)))
                out.write_text(json.dumps(story, indent=1))
                sys.stderr.write(f"width {width}, {name}: {row[name]}\n")
    return story


def seconds(config: SwarmConfig, dataset: Path, name: str) -> float:
    return alone(config, dataset) if name == "alone" else together(config, dataset, LINKS[name])


def kept(row: Mapping[str, Any], name: str) -> float:
    """Return the measured efficiency of two machines over a link, at `MANY` micro-batches a step."""
    return row["alone"]["many"] / row[name]["many"] / 2


def modelled(
    row: Mapping[str, Any],
    width: int,
    stages: int,
    workers: int,
    link: Shape,
    faster: float = 1.0,
    micro_batches: int = USUAL,
) -> float:
    """Return the efficiency of stages x workers machines, each `faster` times as fast as the process measured alone.

    A worker computes its share of the blocks while the link carries; each micro-batch costs it whichever is longer, and
    what two stages on loopback were seen to take beyond their computing (`waited`: both share two cores with all else).
    The pipeline fills once; at the end each reads the sums of the others (all-gather up to four, then in shares), the
    coordinator goes round, and each does what two stages did with half the parameters, at no more than a CPU's speed:
    that is mostly hashing.
    """
    rate = min(DAEMON, link.megabits * 1e6 / 8 if link.megabits else DAEMON)
    trip = link.milliseconds / 1000
    one, two = row["alone"], row["loopback"]
    waited = max(0.0, two["micro_batch"] - one["micro_batch"] / 2)
    carry = ROWS * LENGTH * width * BYTES / rate * (2 if stages > 2 else 1)
    each = max((one["micro_batch"] / stages + waited) / faster, carry)
    end = max(0.0, two["step"] - one["micro_batch"] / 2) * 2 / stages
    part = row["parameters"] / stages * BYTES
    read = part * (workers - 1 if workers <= 4 else 2 * (workers - 1) / workers) / rate
    step = micro_batches / workers * each + (stages - 1) * (each + trip) + read + end + EXCHANGES * trip
    return (micro_batches * one["micro_batch"] + one["step"]) / faster / (step * stages * workers)


def wider(row: Mapping[str, Any], times: int) -> dict[str, Any]:
    """Return what a model so many times as wide would cost: all of it grows with the square, as its matrices do."""
    costs = {
        name: {part: row[name][part] * times**2 for part in ("micro_batch", "step")} for name in ("alone", "loopback")
    }
    return {"parameters": row["parameters"] * times**2, **costs}


def main(argv: Sequence[str] | None = None) -> int:
    parser = ArgumentParser(prog="benchmarks.swarm.efficiency", description="What a swarm keeps of its machines' work.")
    parser.add_argument("--corpus", default="files:../shared/data/text/tinyshakespeare/input.txt")
    parser.add_argument("--widths", default="256,512,1024")
    parser.add_argument("--links", default=";".join(LINKS), help="which of them, with ; between")
    parser.add_argument("--story", type=Path, help="what was measured before, instead of measuring")
    parser.add_argument(
        "--out", type=Path, default=Path("story.json"), help="what is measured, JSON; what is there stays"
    )
    parser.add_argument("--picture", type=Path, help="write the picture there, SVG")
    args = parser.parse_args(argv)
    if args.story:
        story = json.loads(args.story.read_text())
    else:
        widths, links = args.widths.split(","), args.links.split(";")
        story = measure(args.corpus, [int(width) for width in widths], [link for link in links if link], args.out)
    if args.picture:
        from benchmarks.swarm.efficiency_picture import picture

        args.picture.write_text(picture(story))
    sys.stdout.write(json.dumps(table(story), indent=1) + "\n")
    return 0


def table(story: Mapping[str, Any]) -> dict[str, Any]:
    """Return, by width, seconds and efficiencies: measured for two stages of one worker, and modelled for more."""
    result: dict[str, Any] = {}
    for width, found in story.items():
        row = result[width] = {}
        for name in ("alone", *(link for link in LINKS if link in found)):
            row[f"{name}, measured, s a micro-batch"] = round(found[name]["micro_batch"], 4)
            row[f"{name}, measured, s a step besides"] = round(found[name]["step"], 4)
        for name, link in LINKS.items():
            if name in found:
                row[f"2x1 {name}, measured, {MANY} micro-batches"] = round(kept(found, name), 3)
            for stages, workers in ((2, 1), (2, 4), (4, 4), (4, 16)):
                share = modelled(found, int(width), stages, workers, link)
                row[f"{stages}x{workers} {name}, modelled, {USUAL} micro-batches"] = round(share, 3)
    return result


if __name__ == "__main__":
    raise SystemExit(main())
