"""A transformer with squared ReLU and a convolution over three positions after queries, keys and values.

So et al. 2021, "Primer: Searching for Efficient Transformers for Language Modeling", arXiv 2109.08668, section 4.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self

import torch.nn.functional as F
from torch import Tensor, nn

from trainer.models.base import LanguageModel, ParameterGroup, Recipe, pad_vocabulary
from trainer.ops.attention import attention
from trainer.ops.elementwise import norm, squared_relu


@dataclass(frozen=True)
class Config:
    vocabulary_size: int  # token ids are below this
    sequence_length: int  # tokens in a training row
    depth: int = 4  # blocks
    width: int = 256  # of the residual stream
    heads: int = 4  # attention heads, each width / heads wide

    @classmethod
    def sized(cls, depth: int, vocabulary_size: int, sequence_length: int) -> Self:
        return cls(vocabulary_size, sequence_length, depth=depth, width=64 * depth, heads=depth)


class Block(nn.Module):
    def __init__(self, config: Config) -> None:
        super().__init__()
        width, self.heads = config.width, config.heads
        self.query_key_value = nn.Linear(width, 3 * width, bias=False)
        self.convolution = nn.Conv1d(3 * width, 3 * width, 3, groups=3 * width)
        self.output = nn.Linear(width, width, bias=False)
        self.up = nn.Linear(width, 4 * width, bias=False)
        self.down = nn.Linear(4 * width, width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        joint = self.convolution(F.pad(self.query_key_value(norm(x)).mT, (2, 0))).mT
        joint = joint.unflatten(-1, (3, self.heads, -1))
        query, key, value = (each.transpose(1, 2) for each in joint.unbind(-3))
        x = x + self.output(attention(query, key, value).transpose(1, 2).flatten(-2))
        return x + self.down(squared_relu(self.up(norm(x))))


class Model(LanguageModel):
    def __init__(self, config: Config) -> None:
        super().__init__()
        self.config = config
        rows = pad_vocabulary(config.vocabulary_size)
        self.embedding = nn.Embedding(rows, config.width)
        self.positions = nn.Embedding(config.sequence_length, config.width)
        self.blocks = nn.ModuleList(Block(config) for _ in range(config.depth))
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
