"""The baseline with smeared keys: each is a learned mix of a token's own key and the one before.

Olsson et al. 2022, "In-context Learning and Induction Heads", section "Smeared keys"
(https://transformer-circuits.pub/2022/in-context-learning-and-induction-heads/): for each head h,
`k_j = s(a_h) k_j + (1 - s(a_h)) k_{j-1}` with s the sigmoid and a_h learned. A head can then find "the token after this
one" within one block, where a transformer needs two. The first position has no token before it and keeps its own key.
The cost is one multiply-add per key and `heads` numbers a block.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from trainer.models import gpt
from trainer.models.base import Recipe

Config = gpt.Config
"""The baseline's, field for field: the smearing has no knob of its own."""


class Attention(gpt.Attention):
    def __init__(self, config: gpt.Config, block: int) -> None:
        super().__init__(config, block)
        # sigmoid(2) = 0.88: a head starts out mostly as the baseline's, with a hint of its neighbour.
        self.gate = nn.Parameter(torch.full((config.heads,), 2.0))

    def keys(self, x: Tensor) -> Tensor:
        key = super().keys(x)
        before = torch.cat((key[..., :1, :], key[..., :-1, :]), dim=-2)  # the first position is its own neighbour
        own = torch.sigmoid(self.gate)[:, None, None]
        return own * key + (1 - own) * before


class Model(gpt.Model):
    attention = Attention


def recipe(config: gpt.Config) -> Recipe:
    """The baseline's: its group of scalars takes the gates."""
    return gpt.recipe(config)
