"""Blocks of a state-space model whose step and whose input and output matrices depend on the token.

Gu and Dao 2023, "Mamba", arXiv 2312.00752, section 3 and algorithm 2. The recurrence runs over all positions at once in
log2(T) rounds, each combining a position with the one 1, 2, 4, ... before it (Hillis and Steele 1986).
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
    states: int = 8  # per channel
    kernel: int = 4  # positions of the convolution

    @classmethod
    def sized(cls, depth: int, vocabulary_size: int, sequence_length: int) -> Self:
        return cls(vocabulary_size, sequence_length, depth=depth, width=64 * depth)


def scan(decay: Tensor, added: Tensor) -> Tensor:
    """Return h_t = decay_t h_(t-1) + added_t over dimension 1, from h = 0."""
    length, shift = decay.size(1), 1
    while shift < length:
        before = (0, 0, 0, 0, shift, 0)
        added = added + decay * F.pad(added, before)[:, :length]
        decay = decay * F.pad(decay, before, value=1.0)[:, :length]
        shift *= 2
    return added


class Block(nn.Module):
    def __init__(self, config: Config) -> None:
        super().__init__()
        width, inner, self.states = config.width, 2 * config.width, config.states
        self.rank = math.ceil(width / 16)
        self.norm = nn.RMSNorm(width)
        self.input = nn.Linear(width, 2 * inner, bias=False)
        self.convolution = nn.Conv1d(inner, inner, config.kernel, groups=inner, padding=config.kernel - 1)
        self.select = nn.Linear(inner, self.rank + 2 * self.states, bias=False)
        self.step = nn.Linear(self.rank, inner)
        self.log_decay = nn.Parameter(torch.arange(1, self.states + 1).float().log().repeat(inner, 1))
        self.skip = nn.Parameter(torch.ones(inner))
        self.output = nn.Linear(inner, width, bias=False)
        # Steps from 0.001 to 0.1, evenly in their logarithm; softplus is inverted.
        steps = torch.exp(torch.rand(inner) * math.log(100) + math.log(0.001))
        with torch.no_grad():
            self.step.bias.copy_(steps + torch.log(-torch.expm1(-steps)))

    def forward(self, x: Tensor) -> Tensor:
        inner, gate = self.input(self.norm(x)).chunk(2, dim=-1)
        inner = F.silu(self.convolution(inner.mT)[..., : x.size(1)].mT)
        rank, enter, leave = self.select(inner).float().split((self.rank, self.states, self.states), dim=-1)
        step = F.softplus(self.step(rank)).float().unsqueeze(-1)  # [B, T, inner, 1]
        decay = torch.exp(-step * self.log_decay.exp())
        state = scan(decay, step * enter.unsqueeze(-2) * inner.unsqueeze(-1))
        read = (state * leave.unsqueeze(-2)).sum(-1) + self.skip * inner
        return x + self.output(read * F.silu(gate))


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
            ParameterGroup("vectors", ("*.bias", "*norm*.weight", "*.log_decay", "*.skip"), "adamw", rate),
            ParameterGroup("matrices", ("*",), "adamw", rate, weight_decay=0.1),
        ),
        clip=1.0,
    )
