"""Cutting RWKV-5, whose blocks pass on the residual stream. States stay where they are: each row starts empty."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from trainer.models.rwkv5 import HEAD, BlockState, Config, Model

Held = Sequence[tuple[nn.Module, str]]


def check(model: Model) -> None:
    """Every size can be cut."""


def blocks(model: Model) -> nn.ModuleList:
    return model.blocks


def ends(model: Model) -> tuple[Held, Held]:
    return [(model, "emb")], [(model, "ln_out"), (model, "head")]


def streams(config: Config, done: int) -> int:
    return 1


def embed(model: Model, tokens: Tensor) -> Tensor:
    return model.blocks[0].ln0(model.emb(tokens))


def through(model: Model, tokens: Tensor, hidden: Tensor, start: int, stop: int) -> Tensor:
    for number in range(start, stop):
        hidden, _ = model.blocks[number](hidden, empty(model.config, hidden))
    return hidden


def empty(config: Config, hidden: Tensor) -> BlockState:
    """Return a block's state before the first token, as `Model.empty` makes it."""
    shift = hidden.new_zeros(hidden.size(0), config.width)
    wide = torch.promote_types(hidden.dtype, torch.float32)
    heads = torch.zeros(hidden.size(0), config.heads, HEAD, HEAD, dtype=wide, device=hidden.device)
    return BlockState(shift, shift, heads)


def finish(model: Model, hidden: Tensor) -> Tensor:
    return model.ln_out(hidden)
