"""The baseline with smeared keys: each is a learned mix of a token's own key and the previous one.

Olsson et al. 2022, "In-context Learning and Induction Heads", section "Smeared keys"
(https://transformer-circuits.pub/2022/in-context-learning-and-induction-heads/): for each head h,
`k_j = s(a_h) k_j + (1 - s(a_h)) k_{j-1}` with s the sigmoid and a_h learned. A head can then find "the token after this
one" within one block, where a transformer needs two. The first position has no token before it and keeps its own key.
The cost is one multiply-add per key and `heads` parameters per block. The baseline's `embedding_smear` mixes embeddings
instead; it is off here.
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


class SmearAttention(gpt.GPTAttention):
    def __init__(self, config: gpt.Config, block: int) -> None:
        super().__init__(config, block)
        # sigmoid(2) = 0.88: a head starts close to the baseline, with a little of the previous key.
        self.gate = nn.Parameter(torch.full((config.heads,), 2.0))

    def compute_keys(self, x: Tensor, previous: Tensor | None) -> Tensor:
        key = super().compute_keys(x, None)
        first = key[:, :1] if previous is None else super().compute_keys(previous, None)
        before = torch.cat((first, key[:, :-1]), dim=1)
        weight = torch.sigmoid(self.gate)[:, None].to(key.dtype)
        return weight * key + (1 - weight) * before


class Model(gpt.Model):
    attention_class = SmearAttention


def recipe(config: gpt.Config) -> Recipe:
    """Return the baseline's recipe. Its group of scalars matches the gates."""
    return gpt.recipe(config)
