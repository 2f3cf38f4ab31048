"""A transformer without position embeddings: each head adds a penalty that grows with distance (ALiBi).

Press et al. 2021, "Train Short, Test Long", arXiv 2108.12409, section 3. Slopes are a geometric sequence.
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


def build_bias(heads: int, length: int, device: torch.device) -> Tensor:
    """Return what is added to the scores, `[heads, T, T]`: minus slope times distance, and minus infinity ahead."""
    slopes = torch.exp2(-8 / heads * torch.arange(1, heads + 1, device=device))
    positions = torch.arange(length, device=device)
    distance = positions[:, None] - positions
    return torch.where(distance >= 0, -slopes[:, None, None] * distance, -math.inf)


class Block(nn.Module):
    def __init__(self, config: Config) -> None:
        super().__init__()
        width = config.width
        self.heads = config.heads
        self.norm_1, self.norm_2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.query_key_value = nn.Linear(width, 3 * width, bias=False)
        self.output = nn.Linear(width, width, bias=False)
        self.up = nn.Linear(width, 4 * width, bias=False)
        self.down = nn.Linear(4 * width, width, bias=False)

    def forward(self, x: Tensor, bias: Tensor) -> Tensor:
        joint = self.query_key_value(self.norm_1(x)).unflatten(-1, (3, self.heads, -1))
        query, key, value = (each.transpose(1, 2) for each in joint.unbind(-3))
        mixed = F.scaled_dot_product_attention(query, key, value, attn_mask=bias.type_as(query))
        x = x + self.output(mixed.transpose(1, 2).flatten(-2))
        return x + self.down(F.gelu(self.up(self.norm_2(x))))


class Model(LanguageModel):
    def __init__(self, config: Config) -> None:
        super().__init__()
        self.config = config
        rows = pad_vocabulary(config.vocabulary_size)
        self.embedding = nn.Embedding(rows, config.width)
        self.blocks = nn.ModuleList(Block(config) for _ in range(config.depth))
        self.norm = nn.LayerNorm(config.width)
        self.head = nn.Linear(config.width, rows, bias=False)

    def features(self, tokens: Tensor) -> Tensor:
        x = self.embedding(tokens)
        bias = build_bias(self.config.heads, tokens.size(1), tokens.device)
        for block in self.blocks:
            x = block(x, bias)
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
