"""The baseline with smeared keys: each is a learned mix of a token's own key and the one before.

Olsson et al. 2022, "In-context Learning and Induction Heads", section "Smeared keys"
(https://transformer-circuits.pub/2022/in-context-learning-and-induction-heads/): for each head h,
`k_j = s(a_h) k_j + (1 - s(a_h)) k_{j-1}` with s the sigmoid and a_h learned. A head can then find "the token after this
one" within one block, where a transformer needs two. The first position has no token before it and keeps its own key.
The cost is one multiply-add per key and `heads` numbers a block. Not the baseline's `embedding_smear`, which mixes what
enters the model; here each head of each block decides for itself, so that one is off.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from trainer.models import gpt
from trainer.models.base import Recipe


@dataclass(frozen=True)
class Config(gpt.Config):
    embedding_smear: bool = False
    """Off: keys are smeared instead."""


class Attention(gpt.Attention):
    def __init__(self, config: gpt.Config, block: int) -> None:
        super().__init__(config, block)
        # sigmoid(2) = 0.88: a head starts out mostly as the baseline's, with a hint of its neighbour.
        self.gate = nn.Parameter(torch.full((config.heads,), 2.0))

    def keys(self, x: Tensor, last: Tensor | None) -> Tensor:
        key = super().keys(x, None)
        first = key[:, :1] if last is None else super().keys(last, None)  # the first position is its own neighbour
        before = torch.cat((first, key[:, :-1]), dim=1)
        own = torch.sigmoid(self.gate)[:, None].to(key.dtype)
        return own * key + (1 - own) * before


class Model(gpt.Model):
    attention = Attention


def recipe(config: gpt.Config) -> Recipe:
    """The baseline's: its group of scalars takes the gates."""
    return gpt.recipe(config)
