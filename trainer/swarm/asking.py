"""What a swarm's model says: the loss on dev, and how it goes on with a text. The way of a step, with no gradient."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from trainer.swarm import wire
from trainer.swarm.calls import Below
from trainer.swarm.config import SwarmConfig
from trainer.swarm.data import Batches


async def evaluate(
    top: Below, config: SwarmConfig, batches: Batches, step: int, patience: float, rows: int = 32
) -> tuple[float, int]:
    """Return the loss on so many rows of dev, in nats a target, and the number of targets."""
    nats, targets = 0.0, 0
    for number, (x, y) in enumerate(batches.dev(rows)):
        ask = wire.Run(step=step, micro_batch=number, mode="nats", patience=patience)
        answer, _ = await top.run(wire.written(ask, x, y), config.stages, patience, x.numel())
        nats, targets = nats + float(answer.tensors[0].double().sum()), targets + int((y >= 0).sum())
    return nats / max(targets, 1), targets


async def sample(
    top: Below,
    config: SwarmConfig,
    step: int,
    patience: float,
    tokens: Sequence[int],
    count: int,
    temperature: float = 0.0,
    seed: int = 0,
) -> list[int]:
    """Return tokens and what the model goes on with; a temperature of 0 takes the likeliest."""
    text, chance = list(tokens), torch.Generator().manual_seed(seed)
    for _ in range(count):
        x = torch.tensor([text[-config.sequence_length :]])
        ask = wire.Run(step=step, micro_batch=0, mode="logits", patience=patience)
        answer, _ = await top.run(wire.written(ask, x), config.stages, patience, x.numel())
        logits = answer.tensors[0][0]
        if temperature:
            text.append(int(torch.multinomial((logits / temperature).softmax(-1), 1, generator=chance)))
        else:
            text.append(int(logits.argmax()))
    return text
