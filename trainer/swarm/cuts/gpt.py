"""Cutting the baseline and what is built on it.

Beside the residual stream travels the embedding, which each block adds some of (`x0_lambdas`), and behind the middle
the stream as it was there (`backout`). Both are options: without them a boundary costs a third or half.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from trainer.models.gpt import Config, Model
from trainer.swarm.cuts.base import CutError

Held = Sequence[tuple[nn.Module, str]]


def check(model: Model) -> None:
    if model.config.tied_head:
        raise CutError("a tied head is the embedding, which is at the other end: give model.tied_head false")


def blocks(model: Model) -> nn.ModuleList:
    return model.blocks


def ends(model: Model) -> tuple[Held, Held]:
    first = [(model, "embedding")]
    if model.config.embedding_smear:
        first += [(model, "smear_gate"), (model, "smear_lambda")]
    return first, [(model, "head"), *([(model, "backout_lambda")] if model.config.backout else [])]


def remembers(config: Config, done: int) -> bool:
    """Does the stream in the middle differ from the stream behind so many blocks, and is it still wanted?"""
    return config.backout and done > config.depth // 2


def streams(config: Config, done: int) -> int:
    return 1 + config.x0_lambdas + remembers(config, done)


def embed(model: Model, tokens: Tensor) -> Tensor:
    x = model.embed(model.build_inputs(tokens))
    return together(model.config, 0, x, x, x)


def through(model: Model, tokens: Tensor, hidden: Tensor, start: int, stop: int) -> Tensor:
    x, x0, middle = apart(model.config, start, hidden)
    x, middle = model.run_blocks(start, stop, x, x0, middle, model.build_inputs(tokens))
    return together(model.config, stop, x, x0, middle)


def finish(model: Model, hidden: Tensor) -> Tensor:
    x, _, middle = apart(model.config, model.config.depth, hidden)
    return model.finish(x, middle)


def together(config: Config, done: int, x: Tensor, x0: Tensor, middle: Tensor) -> Tensor:
    parts = [x, *([x0] if config.x0_lambdas else []), *([middle] if remembers(config, done) else [])]
    return torch.cat(parts, dim=-1) if len(parts) > 1 else x


def apart(config: Config, done: int, hidden: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return the stream, the embedding and the stream in the middle; what is not wanted any more is the stream."""
    parts = list(hidden.split(config.width, dim=-1))
    x = parts.pop(0)
    x0 = parts.pop(0) if config.x0_lambdas else x
    return x, x0, parts.pop(0) if parts else x
