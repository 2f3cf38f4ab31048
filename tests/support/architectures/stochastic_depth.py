"""A transformer with dropout whose branches are skipped at random in training, later ones more often.

Huang et al. 2016, "Deep Networks with Stochastic Depth", arXiv 1603.09382, section 3, per row. A branch is multiplied
by 0 or 1 / p instead of not being computed: a graph is the same for all random numbers, and so are its FLOPs.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from trainer.models.base import LanguageModel, ParameterGroup, Recipe, pad_vocabulary
from trainer.ops.attention import attention


@dataclass(frozen=True)
class Config:
    vocabulary_size: int  # token ids are below this
    sequence_length: int  # tokens in a training row
    depth: int = 4  # blocks
    width: int = 256  # of the residual stream
    heads: int = 4  # attention heads, each width / heads wide
    dropout: float = 0.1  # of embeddings and branches
    survival: float = 0.8  # probability that the last block is used

    @classmethod
    def sized(cls, depth: int, vocabulary_size: int, sequence_length: int) -> Self:
        return cls(vocabulary_size, sequence_length, depth=depth, width=64 * depth, heads=depth)


class Block(nn.Module):
    def __init__(self, config: Config, survival: float) -> None:
        super().__init__()
        width, self.heads, self.survival = config.width, config.heads, survival
        self.norm_1, self.norm_2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.query_key_value = nn.Linear(width, 3 * width)
        self.output = nn.Linear(width, width)
        self.up = nn.Linear(width, 4 * width)
        self.down = nn.Linear(4 * width, width)
        self.dropout = nn.Dropout(config.dropout)

    def forward(self, x: Tensor) -> Tensor:
        joint = self.query_key_value(self.norm_1(x)).unflatten(-1, (3, self.heads, -1))
        query, key, value = (each.transpose(1, 2) for each in joint.unbind(-3))
        x = x + self.drop_branch(self.output(attention(query, key, value).transpose(1, 2).flatten(-2)))
        return x + self.drop_branch(self.down(F.gelu(self.up(self.norm_2(x)))))

    def drop_branch(self, branch: Tensor) -> Tensor:
        branch = self.dropout(branch)
        if not self.training:
            return branch
        mask = torch.rand(branch.size(0), 1, 1, device=branch.device) < self.survival
        return branch * mask / self.survival


class Model(LanguageModel):
    def __init__(self, config: Config) -> None:
        super().__init__()
        self.config = config
        rows = pad_vocabulary(config.vocabulary_size)
        self.embedding = nn.Embedding(rows, config.width)
        self.positions = nn.Embedding(config.sequence_length, config.width)
        lost = (1 - config.survival) / config.depth
        self.blocks = nn.ModuleList(Block(config, 1 - lost * number) for number in range(1, config.depth + 1))
        self.norm = nn.LayerNorm(config.width)
        self.head = nn.Linear(config.width, rows, bias=False)

    def features(self, tokens: Tensor) -> Tensor:
        x = self.embedding(tokens) + self.positions.weight[: tokens.size(1)]
        for block in self.blocks:
            x = block(x)
        return self.norm(x)

    def logits(self, features: Tensor) -> Tensor:
        return self.head(features)[..., : self.config.vocabulary_size]


def recipe(config: Config) -> Recipe:
    rate = 2e-3 * (256 / config.width) ** 0.5
    return Recipe(
        groups=(
            ParameterGroup("vectors", ("*.bias", "*norm*.weight"), "adamw", rate),
            ParameterGroup("matrices", ("*",), "adamw", rate, weight_decay=0.1),
        ),
        clip=1.0,
    )
