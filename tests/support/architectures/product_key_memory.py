"""A transformer whose MLPs are large tables: a product of two small searches finds the rows, a weighted sum reads them.

Lample et al. 2019, "Large Memory Layers with Product Keys", arXiv 1907.05242, section 3. Rows are summed
with the weights of the search.
"""

from __future__ import annotations

import math
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
    keys: int = 32  # per half: the table has keys x keys rows
    read: int = 8  # rows per token and head
    memory_heads: int = 2  # searches per token

    @classmethod
    def sized(cls, depth: int, vocabulary_size: int, sequence_length: int) -> Self:
        return cls(vocabulary_size, sequence_length, depth=depth, width=64 * depth, heads=depth)


class Memory(nn.Module):
    def __init__(self, config: Config) -> None:
        super().__init__()
        self.heads, self.read, self.count = config.memory_heads, config.read, config.keys
        half = config.width // self.heads // 2
        self.query = nn.Linear(config.width, self.heads * 2 * half)
        self.norm_query = nn.LayerNorm(2 * half)
        self.keys = nn.Parameter(torch.randn(self.heads, 2, config.keys, half) / math.sqrt(half))
        self.values = nn.Parameter(torch.randn(config.keys**2, config.width) / math.sqrt(config.width))

    def forward(self, x: Tensor) -> Tensor:
        query = self.norm_query(self.query(x).unflatten(-1, (self.heads, -1))).unflatten(-1, (2, -1))
        scores = torch.einsum("bthsd,hskd->bthsk", query, self.keys)
        (first, second), (row, column) = (each.unbind(-2) for each in scores.topk(self.read, dim=-1))
        sums = (first.unsqueeze(-1) + second.unsqueeze(-2)).flatten(-2)  # of all pairs of the best of each half
        rows = (row.unsqueeze(-1) * self.count + column.unsqueeze(-2)).flatten(-2)
        best, position = sums.topk(self.read, dim=-1)
        rows = rows.gather(-1, position).flatten(0, 1).flatten(1)
        weights = best.softmax(-1).flatten(0, 1).flatten(1).type_as(self.values)
        found = (F.embedding(rows, self.values) * weights.unsqueeze(-1)).sum(1)
        return found.view_as(x)


class Block(nn.Module):
    def __init__(self, config: Config) -> None:
        super().__init__()
        width, self.heads = config.width, config.heads
        self.norm_1, self.norm_2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.query_key_value = nn.Linear(width, 3 * width, bias=False)
        self.output = nn.Linear(width, width, bias=False)
        self.memory = Memory(config)

    def forward(self, x: Tensor) -> Tensor:
        joint = self.query_key_value(self.norm_1(x)).unflatten(-1, (3, self.heads, -1))
        query, key, value = (each.transpose(1, 2) for each in joint.unbind(-3))
        x = x + self.output(attention(query, key, value).transpose(1, 2).flatten(-2))
        return x + self.memory(self.norm_2(x))


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
