"""A swarm's stages one behind another in one process, and a configuration small enough for milliseconds a step."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from trainer.data.dataset import Dataset
from trainer.swarm.config import SwarmConfig
from trainer.swarm.data import Batches
from trainer.swarm.stage import Passage, Stage, squared_norm

SHAPES: dict[str, dict[str, Any]] = {
    "gpt": {"depth": 4, "width": 32, "heads": 2},
    "smear": {"depth": 3, "width": 32, "heads": 2},
    "litgpt": {
        "name": "small",
        "fields": {"n_layer": 3, "n_head": 2, "n_embd": 32, "intermediate_size": 64, "rotary_percentage": 1.0},
    },
    "rwkv5": {"depth": 3, "width": 64},
}


def tiny(dataset: Dataset, arch: str = "gpt", **changes: Any) -> SwarmConfig:
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


def descend(stages: list[Stage], batches: Batches, step: int, micro_batch: int) -> list[Passage]:
    """Let a micro-batch pass all stages."""
    tokens, targets = batches.tokens(step, micro_batch)
    passages: list[Passage] = []
    for stage in stages:
        hidden = passages[-1].output if passages else None
        passages.append(stage.forward(tokens, hidden, targets if stage.last else None))
    return passages


def ascend(stages: list[Stage], passages: list[Passage]) -> None:
    """Take its gradients back up, and add them."""
    gradient = None
    for stage, passage in zip(reversed(stages), reversed(passages), strict=True):
        gradient, mine = stage.backward(passage, gradient)
        stage.add(mine)


def update(stages: list[Stage], step: int) -> None:
    config = stages[0].config
    means = [stage.total * (1 / config.micro_batches) for stage in stages]
    scale = config.clip_scale(sum(map(squared_norm, means)))
    for stage, mean in zip(stages, means, strict=True):
        stage.apply(mean, config.rate(step), scale)


def chained(stages: list[Stage], batches: Batches, steps: int) -> Iterator[float]:
    """Train the stages, which are level; yield each step's loss."""
    for step in range(stages[0].version, stages[0].version + steps):
        nats = count = 0.0
        for micro_batch in range(stages[0].config.micro_batches):
            passages = descend(stages, batches, step, micro_batch)
            ascend(stages, passages)
            nats, count = nats + passages[-1].nats, count + passages[-1].count
        update(stages, step)
        yield nats / count


def all_stages(config: SwarmConfig, **settings: Any) -> list[Stage]:
    return [Stage(config, index, **settings) for index in range(config.stages)]
