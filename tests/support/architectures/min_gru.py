"""Blocks of a GRU without a hidden-to-hidden matrix, computed for all positions at once in logarithms.

Feng et al. 2024, "Were RNNs All We Needed?", arXiv 2410.01201, section 3.1 and appendix B.
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


def scan(log_decay: Tensor, log_added: Tensor) -> Tensor:
    """Return h_t = decay_t h_(t-1) + added_t over dimension 1, from h = 0, all of them positive."""
    total = log_decay.cumsum(1)
    return (total + torch.logcumsumexp(log_added - total, dim=1)).exp()


class Block(nn.Module):
    def __init__(self, config: Config) -> None:
        super().__init__()
        width = config.width
        self.norm_1, self.norm_2 = nn.RMSNorm(width), nn.RMSNorm(width)
        self.update_value = nn.Linear(width, 2 * width)
        self.output = nn.Linear(width, width, bias=False)
        self.up = nn.Linear(width, 4 * width, bias=False)
        self.down = nn.Linear(4 * width, width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        update, value = self.update_value(self.norm_1(x)).float().chunk(2, dim=-1)
        # A value is kept positive: x + 0.5 above zero, the sigmoid of x below.
        log_value = torch.where(value >= 0, (F.relu(value) + 0.5).log(), F.logsigmoid(value))
        x = x + self.output(scan(F.logsigmoid(-update), F.logsigmoid(update) + log_value))
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
