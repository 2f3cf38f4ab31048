"""Partition of GPT-2: stages send the residual stream only."""

from __future__ import annotations

from torch import Tensor, nn

from trainer.models.nanogpt import Config, Model
from trainer.swarm.partitions.base import Parts, StageCache


def get_blocks(model: Model) -> nn.ModuleList:
    return model.blocks


def get_end_parts(model: Model) -> tuple[Parts, Parts]:
    head = "embedding" if model.config.tied_head else "head"
    return [(model, "embedding"), (model, "positions")], [(model, "norm"), (model, head)]


def count_streams(config: Config, done: int) -> int:
    return 1


def build_cache(model: Model) -> StageCache:
    return StageCache()


def embed_tokens(model: Model, tokens: Tensor, cache: StageCache | None = None) -> Tensor:
    first = cache.length if cache else 0
    return model.embedding(tokens) + model.positions.weight[first : first + tokens.size(1)]


def run_blocks(
    model: Model, tokens: Tensor, hidden: Tensor, start: int, stop: int, cache: StageCache | None = None
) -> Tensor:
    cache = cache or StageCache()
    for number in range(start, stop):
        hidden, cache.blocks[number] = model.blocks[number](hidden, cache.blocks.get(number))
    cache.length += tokens.size(1)
    return hidden


def normalize_output(model: Model, hidden: Tensor) -> Tensor:
    return model.norm(hidden)
