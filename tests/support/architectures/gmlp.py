"""Blocks without attention: a matrix over positions, the same for all rows, mixes one half of the channels.

Liu et al. 2021, "Pay Attention to MLPs", arXiv 2105.08050, section 2. The matrix is lower triangular here, so that no
position sees a later one. It starts near zero and its bias at one, which is the identity.
"""

from __future__ import annotations

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

    @classmethod
    def sized(cls, depth: int, vocabulary_size: int, sequence_length: int) -> Self:
        return cls(vocabulary_size, sequence_length, depth=depth, width=64 * depth)


class Block(nn.Module):
    def __init__(self, config: Config) -> None:
        super().__init__()
        width, length = config.width, config.sequence_length
        self.norm, self.norm_gate = nn.LayerNorm(width), nn.LayerNorm(2 * width)
        self.up = nn.Linear(width, 4 * width)
        self.mix = nn.Parameter(torch.randn(length, length) * 0.1 / length)
        self.mix_bias = nn.Parameter(torch.ones(length, 1))
        self.down = nn.Linear(2 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        length = x.size(1)
        value, gate = F.gelu(self.up(self.norm(x))).chunk(2, dim=-1)
        gate = self.mix[:length, :length].tril() @ self.norm_gate(gate) + self.mix_bias[:length]
        return x + self.down(value * gate)


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
        for block in self.blocks:
            x = block(x)
        return self.norm(x)

    def logits(self, features: Tensor) -> Tensor:
        return self.head(features)[..., : self.config.vocabulary_size]


def recipe(config: Config) -> Recipe:
    rate = 2e-3 * (256 / config.width) ** 0.5
    return Recipe(
        groups=(
            ParameterGroup("vectors", ("*.bias", "*norm*.weight", "*.mix_bias"), "adamw", rate),
            ParameterGroup("matrices", ("*",), "adamw", rate, weight_decay=0.1),
        ),
        clip=1.0,
    )
