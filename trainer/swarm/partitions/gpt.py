"""Partition of the baseline GPT and the architectures built on it.

Stages send the residual stream and, as further streams, the embedding that each block mixes in (`x0_lambdas`) and,
after the middle block, the residual stream of the middle (`backout`). Both are options of the model: without them a
boundary tensor has a half or a third of the size.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from trainer.models.gpt import Config, GPTState, KVCache, Model
from trainer.swarm.partitions.base import PartitionError, Parts


def get_blocks(model: Model) -> nn.ModuleList:
    return model.blocks


def get_end_parts(model: Model) -> tuple[Parts, Parts]:
    if model.config.memory_rows:
        raise PartitionError("memory_rows cannot be partitioned: every stage would need the table")
    first = [(model, "embedding")]
    if model.config.embedding_smear:
        first += [(model, "smear_gate"), (model, "smear_lambda")]
    head = "embedding" if model.config.tied_head else "head"
    return first, [(model, head), *([(model, "backout_lambda")] if model.config.backout else [])]


def sends_middle(config: Config, done: int) -> bool:
    """Return whether the middle stream is sent, too, after `done` blocks."""
    return config.backout and done > config.depth // 2


def count_streams(config: Config, done: int) -> int:
    return 1 + config.x0_lambdas + sends_middle(config, done)


def build_cache(model: Model) -> GPTState:
    return GPTState([KVCache() for _ in model.blocks])


def embed_tokens(model: Model, tokens: Tensor, cache: GPTState | None = None) -> Tensor:
    x = model.embed(model.build_inputs(tokens, cache), cache)
    return pack_streams(model.config, 0, x, x, x)


def run_blocks(
    model: Model, tokens: Tensor, hidden: Tensor, start: int, stop: int, cache: GPTState | None = None
) -> Tensor:
    x, x0, middle = unpack_streams(model.config, start, hidden)
    inputs = model.build_inputs(tokens, cache)
    x, middle = model.run_blocks(start, stop, x, x0, middle, inputs, cache)
    if cache:
        cache.length, cache.documents = cache.length + tokens.size(1), inputs.documents
    return pack_streams(model.config, stop, x, x0, middle)


def normalize_output(model: Model, hidden: Tensor) -> Tensor:
    x, _, middle = unpack_streams(model.config, model.config.depth, hidden)
    return model.finish(x, middle)


def pack_streams(config: Config, done: int, x: Tensor, x0: Tensor, middle: Tensor) -> Tensor:
    parts = [x, *([x0] if config.x0_lambdas else []), *([middle] if sends_middle(config, done) else [])]
    return torch.cat(parts, dim=-1) if len(parts) > 1 else x


def unpack_streams(config: Config, done: int, hidden: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return the residual stream, the embedding and the middle stream; a missing one is the residual stream."""
    parts = list(hidden.split(config.width, dim=-1))
    x = parts.pop(0)
    x0 = parts.pop(0) if config.x0_lambdas else x
    return x, x0, parts.pop(0) if parts else x
