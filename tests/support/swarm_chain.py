"""A swarm's stages chained in one process, and a configuration with steps of milliseconds."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from trainer.data.dataset import Dataset
from trainer.swarm.config import SwarmConfig
from trainer.swarm.data import Batches
from trainer.swarm.stage import ForwardRecord, Stage, squared_norm

SHAPES: dict[str, dict[str, Any]] = {
    "nanogpt": {"depth": 4, "width": 32, "heads": 2, "tied_head": False},
    "gpt": {"depth": 4, "width": 32, "heads": 2},
    "smear": {"depth": 3, "width": 32, "heads": 2},
    "litgpt": {
        "name": "small",
        "fields": {"n_layer": 3, "n_head": 2, "n_embd": 32, "intermediate_size": 64, "rotary_percentage": 1.0},
    },
    "rwkv5": {"depth": 3, "width": 64},
}


def build_tiny_config(dataset: Dataset, arch: str = "gpt", **changes: Any) -> SwarmConfig:
    sizes = {"vocabulary_size": dataset.tokenizer.vocabulary_size, "sequence_length": 16, **SHAPES[arch]}
    settings = {
        "model": sizes,
        "stages": 2,
        "steps": 10,
        "micro_batches": 4,
        "sequence_length": 16,
        "seed": 5,
        "warmup_steps": 2,
    }
    return SwarmConfig(arch=arch, **{**settings, **changes})


def run_forward(stages: list[Stage], batches: Batches, step: int, micro_batch: int) -> list[ForwardRecord]:
    """Run a micro-batch through all stages."""
    tokens, targets = batches.get_batch(step, micro_batch)
    records: list[ForwardRecord] = []
    for stage in stages:
        hidden = records[-1].output if records else None
        records.append(stage.forward(tokens, hidden, targets if stage.is_last else None))
    return records


def run_backward(stages: list[Stage], records: list[ForwardRecord]) -> None:
    """Run its backward passes, and accumulate the gradients."""
    gradient = None
    for stage, record in zip(reversed(stages), reversed(records), strict=True):
        gradient, gradients = stage.backward(record, gradient)
        stage.add_gradients(gradients)


def apply_update(stages: list[Stage], step: int) -> None:
    config = stages[0].config
    means = [stage.gradient_sum * (1 / config.micro_batches) for stage in stages]
    scale = config.compute_clip_scale(sum(map(squared_norm, means)))
    for stage, mean in zip(stages, means, strict=True):
        stage.apply_update(mean, config.get_rate_factor(step), scale)


def train_stages(stages: list[Stage], batches: Batches, steps: int) -> Iterator[float]:
    """Train the stages, which are at the same version; yield each step's loss."""
    for step in range(stages[0].version, stages[0].version + steps):
        nats = count = 0.0
        for micro_batch in range(stages[0].config.micro_batches):
            records = run_forward(stages, batches, step, micro_batch)
            run_backward(stages, records)
            nats, count = nats + records[-1].nats, count + records[-1].count
        apply_update(stages, step)
        yield nats / count


def build_stages(config: SwarmConfig, **settings: Any) -> list[Stage]:
    return [Stage(config, index, **settings) for index in range(config.stages)]
