"""Cutting RWKV-5, whose blocks pass on the residual stream. States stay where they are: each row starts empty."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor, nn

from trainer.models.rwkv5 import Config, Model

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
    return model.embed(tokens)


def through(model: Model, tokens: Tensor, hidden: Tensor, start: int, stop: int) -> Tensor:
    return model.run_blocks(start, stop, hidden)[0]


def finish(model: Model, hidden: Tensor) -> Tensor:
    return model.ln_out(hidden)
