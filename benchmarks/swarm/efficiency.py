"""Efficiency of a swarm against one process that does the same work, by width, shape and link.

    python -m benchmarks.swarm.efficiency --corpus files:PATH --widths 256,512,1024 --out story.json
    python -m benchmarks.swarm.efficiency --story story.json

Measured on two cores: one process on one thread, and a swarm of two stages of one worker each, one thread each, over
real sockets and `benchmarks.swarm.link`. Steps of few and of many micro-batches separate the cost of a micro-batch from
that of a step (filling the pipeline, voting, the update). Larger swarms are estimated from these costs
(`estimate_efficiency`). The vocabulary is small, so the head costs almost nothing.
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

from benchmarks.swarm.efficiency_model import (
    BLOCKS,
    FEW,
    LENGTH,
    LINKS,
    MANY,
    ROWS,
    USUAL,
    estimate_efficiency,
    measured_efficiency,
)
from benchmarks.swarm.link import Links, LinkShape
from trainer.data.dataset import Dataset, prepare_dataset
from trainer.ops.devices import keep_freed_memory
from trainer.swarm.config import SwarmConfig
from trainer.swarm.data import Batches
from trainer.swarm.local_swarm import LocalSwarm
from trainer.swarm.single_process import SingleProcessRun
from trainer.swarm.stage import build_model


def build_config(width: int, stages: int, micro_batches: int, vocabulary: int) -> SwarmConfig:
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


def split_costs(few: float, many: float) -> dict[str, float]:
    """Return the seconds of a micro-batch and of a step without them, given those of steps of `FEW` and `MANY`."""
    each = (many - few) / (MANY - FEW)
    return {"few": few, "many": many, "micro_batch": each, "step": max(0.0, few - FEW * each)}


def measure_alone(config: SwarmConfig, dataset: Path) -> float:
    """Return the seconds of a step of one process."""
    torch.set_num_threads(1)
    keep_freed_memory(single_arena=True)  # as workers do
    reference = SingleProcessRun(config, Batches(Dataset.open(dataset), config))
    durations = []
    for _ in range(3):
        started = time.perf_counter()
        reference.run_step()
        durations.append(time.perf_counter() - started)
    return min(durations)


def measure_swarm(config: SwarmConfig, dataset: Path, shape: LinkShape) -> float:
    """Return the seconds of a step of two stages of one worker each, over links of this shape."""
    with Links(shape) as links:
        proxy = links.get_proxy_port if shape != LinkShape() else None
        with LocalSwarm(config, dataset, [0, 1], timeout=120, links=proxy) as swarm:
            lines = swarm.run(1200)
        return min([line["seconds"] for line in lines if line["kind"] == "commit"][1:])


def measure(corpus: str, widths: Sequence[int], links: Sequence[str], out: Path) -> dict[str, Any]:
    """Return the costs of one process and of two stages over each link, by width. Results in `out` are reused."""
    story = json.loads(out.read_text()) if out.exists() else {}
    with tempfile.TemporaryDirectory() as folder:
        dataset = Path(folder) / "dataset"
        vocabulary = prepare_dataset(corpus, "bpe:320", dataset, 2**20).tokenizer.vocabulary_size
        for width, name in ((width, name) for width in widths for name in ("alone", *links)):
            row = story.setdefault(str(width), {})
            if name not in row:
                few, many = (build_config(width, 2, count, vocabulary) for count in (FEW, MANY))
                row["parameters"] = sum(p.numel() for p in build_model(few).parameters())
                row[name] = split_costs(*(measure_step(config, dataset, name) for config in (few, many)))
                out.write_text(json.dumps(story, indent=1))
                sys.stderr.write(f"width {width}, {name}: {row[name]}\n")
    return story


def measure_step(config: SwarmConfig, dataset: Path, name: str) -> float:
    return measure_alone(config, dataset) if name == "alone" else measure_swarm(config, dataset, LINKS[name])


def main(argv: Sequence[str] | None = None) -> int:
    parser = ArgumentParser(prog="benchmarks.swarm.efficiency", description="Efficiency of a swarm.")
    parser.add_argument("--corpus", default="files:../shared/data/text/tinyshakespeare/input.txt")
    parser.add_argument("--widths", default="256,512,1024")
    parser.add_argument("--links", default=";".join(LINKS), help="links, separated by ;")
    parser.add_argument("--story", type=Path, help="results of an earlier measurement, instead of measuring")
    parser.add_argument(
        "--out", type=Path, default=Path("story.json"), help="file for the results, JSON; results in it are reused"
    )
    args = parser.parse_args(argv)
    if args.story:
        story = json.loads(args.story.read_text())
    else:
        widths, links = args.widths.split(","), args.links.split(";")
        story = measure(args.corpus, [int(width) for width in widths], [link for link in links if link], args.out)
    sys.stdout.write(json.dumps(summarize(story), indent=1) + "\n")
    return 0


def summarize(story: Mapping[str, Any]) -> dict[str, Any]:
    """Return seconds and efficiencies by width: measured for two stages of one worker, estimated for more."""
    result: dict[str, Any] = {}
    for width, costs in story.items():
        row = result[width] = {}
        for name in ("alone", *(link for link in LINKS if link in costs)):
            row[f"{name}, measured, s a micro-batch"] = round(costs[name]["micro_batch"], 4)
            row[f"{name}, measured, s a step without them"] = round(costs[name]["step"], 4)
        for name, link in LINKS.items():
            if name in costs:
                row[f"2x1 {name}, measured, {MANY} micro-batches"] = round(measured_efficiency(costs, name), 3)
            for stages, workers in ((2, 1), (2, 4), (4, 4), (4, 16)):
                share = estimate_efficiency(costs, int(width), stages, workers, link)
                row[f"{stages}x{workers} {name}, estimated, {USUAL} micro-batches"] = round(share, 3)
    return result


if __name__ == "__main__":
    raise SystemExit(main())
