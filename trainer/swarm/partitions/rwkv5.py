"""Partition of RWKV-5: stages send the residual stream only. Each row starts with an empty state in every block."""

from __future__ import annotations

from torch import Tensor, nn

from trainer.models.rwkv5 import Config, Model
from trainer.swarm.partitions.base import Parts, StageCache


def get_blocks(model: Model) -> nn.ModuleList:
    return model.blocks


def get_end_parts(model: Model) -> tuple[Parts, Parts]:
    return [(model, "emb")], [(model, "ln_out"), (model, "head")]


def count_streams(config: Config, done: int) -> int:
    return 1


def build_cache(model: Model) -> StageCache:
    return StageCache()


def embed_tokens(model: Model, tokens: Tensor, cache: StageCache | None = None) -> Tensor:
    return model.embed(tokens)


def run_blocks(
    model: Model, tokens: Tensor, hidden: Tensor, start: int, stop: int, cache: StageCache | None = None
) -> Tensor:
    cache, numbers = cache or StageCache(), range(start, stop)
    before = [cache.blocks[number] for number in numbers] if cache.length else None
    hidden, states = model.run_blocks(start, stop, hidden, before)
    cache.blocks.update(zip(numbers, states, strict=True))
    cache.length += tokens.size(1)
    return hidden


def normalize_output(model: Model, hidden: Tensor) -> Tensor:
    return model.ln_out(hidden)
