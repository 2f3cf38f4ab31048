"""A transformer in which each head is the difference of two softmax maps, which cancels irrelevant attention.

Ye et al. 2024, "Differential Transformer", arXiv 2410.05258, section 2.1.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Self

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from trainer.models.base import LanguageModel, ParameterGroup, Recipe, pad_vocabulary


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
    def __init__(self, config: Config, number: int) -> None:
        super().__init__()
        width, self.heads = config.width, config.heads
        size = width // config.heads
        self.initial = 0.8 - 0.6 * math.exp(-0.3 * number)
        self.norm_1, self.norm_2, self.norm_head = nn.RMSNorm(width), nn.RMSNorm(width), nn.RMSNorm(size)
        self.query_key = nn.Linear(width, 2 * width, bias=False)
        self.value = nn.Linear(width, width, bias=False)
        self.factors = nn.Parameter(0.1 * torch.randn(4, size // 2))  # queries 1, keys 1, queries 2, keys 2
        self.output = nn.Linear(width, width, bias=False)
        self.up = nn.Linear(width, 4 * width, bias=False)
        self.down = nn.Linear(4 * width, width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        normed = self.norm_1(x)
        joint = self.query_key(normed).unflatten(-1, (4, self.heads, -1)).transpose(1, 3)  # [B, H, 4, T, D / 2]
        value = self.value(normed).unflatten(-1, (self.heads, -1)).transpose(1, 2)
        query, key = joint.unflatten(2, (2, 2)).unbind(2)
        scores = query @ key.mT / math.sqrt(query.size(-1))
        ahead = torch.ones(x.size(1), x.size(1), dtype=torch.bool, device=x.device).triu(1)
        first, second = scores.masked_fill(ahead, -math.inf).softmax(-1).unbind(2)
        q1, k1, q2, k2 = self.factors.unbind()
        factor = (q1 * k1).sum().exp() - (q2 * k2).sum().exp() + self.initial
        mixed = self.norm_head((first - factor * second) @ value.type_as(first)) * (1 - self.initial)
        x = x + self.output(mixed.transpose(1, 2).flatten(-2))
        return x + self.down(F.gelu(self.up(self.norm_2(x))))


class Model(LanguageModel):
    def __init__(self, config: Config) -> None:
        super().__init__()
        self.config = config
        rows = pad_vocabulary(config.vocabulary_size)
        self.embedding = nn.Embedding(rows, config.width)
        self.positions = nn.Embedding(config.sequence_length, config.width)
        self.blocks = nn.ModuleList(Block(config, number) for number in range(config.depth))
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
            ParameterGroup("vectors", ("*.bias", "*norm*.weight", "*.factors"), "adamw", rate),
            ParameterGroup("matrices", ("*",), "adamw", rate, weight_decay=0.1),
        ),
        clip=1.0,
    )
