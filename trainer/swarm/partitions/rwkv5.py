"""Partition of RWKV-5: stages send the residual stream only. Each row starts with an empty state in every block."""

from __future__ import annotations

from torch import Tensor, nn

from trainer.models.rwkv5 import Config, Model
from trainer.swarm.partitions.base import Parts


def check(model: Model) -> None:
    """Accept every size."""


def get_blocks(model: Model) -> nn.ModuleList:
    return model.blocks


def get_end_parts(model: Model) -> tuple[Parts, Parts]:
    return [(model, "emb")], [(model, "ln_out"), (model, "head")]


def count_streams(config: Config, done: int) -> int:
    return 1


def embed_tokens(model: Model, tokens: Tensor) -> Tensor:
    return model.embed(tokens)


def run_blocks(model: Model, tokens: Tensor, hidden: Tensor, start: int, stop: int) -> Tensor:
    return model.run_blocks(start, stop, hidden)[0]


def normalize_output(model: Model, hidden: Tensor) -> Tensor:
    return model.ln_out(hidden)
