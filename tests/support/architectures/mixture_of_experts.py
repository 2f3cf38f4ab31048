"""A transformer whose MLPs are chosen per token out of several experts, each of a fixed capacity per row.

Shazeer et al. 2017, arXiv 1701.06538 (top-k gates); Fedus et al. 2021, "Switch Transformers", arXiv 2101.03961, section
2.2 (capacity: what exceeds it is skipped). Earlier tokens of a row take the places first, so the choice is causal.
Shapes are fixed: tokens are written to places `[experts x capacity]`, all experts run as one batched product, and each
token reads its results.
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
    experts: int = 8  # per block
    chosen: int = 2  # experts per token
    hidden: int = 512  # width inside an expert
    capacity: float = 2.0  # places, relative to an even distribution

    @classmethod
    def sized(cls, depth: int, vocabulary_size: int, sequence_length: int) -> Self:
        return cls(vocabulary_size, sequence_length, depth=depth, width=64 * depth, hidden=128 * depth, heads=depth)


class Experts(nn.Module):
    def __init__(self, config: Config) -> None:
        super().__init__()
        self.config = config
        self.router = nn.Linear(config.width, config.experts, bias=False)
        self.up = nn.Parameter(torch.randn(config.experts, config.width, config.hidden) / math.sqrt(config.width))
        self.down = nn.Parameter(torch.randn(config.experts, config.hidden, config.width) / math.sqrt(config.hidden))

    def forward(self, x: Tensor) -> Tensor:
        (length, width), experts, chosen = x.shape[1:], self.config.experts, self.config.chosen
        places = math.ceil(self.config.capacity * chosen * length / experts)
        gates, expert = self.router(x).softmax(-1).topk(chosen, dim=-1)  # [B, T, K]
        gates = gates / gates.sum(-1, keepdim=True)
        expert = expert.flatten(1)  # [B, T K]: in the order of positions
        order = F.one_hot(expert, experts).cumsum(1).gather(2, expert.unsqueeze(-1)).squeeze(-1) - 1
        # Tokens without a place are written to an extra one, which is discarded.
        place = torch.where(order < places, expert * places + order, experts * places).unsqueeze(-1)
        copies = x.repeat_interleave(chosen, dim=1)
        dispatched = x.new_zeros(x.size(0), experts * places + 1, width).scatter(1, place.expand_as(copies), copies)
        grouped = dispatched[:, :-1].unflatten(1, (experts, places)).transpose(0, 1).flatten(1, 2)  # [E, B places, D]
        result = torch.bmm(F.relu(torch.bmm(grouped, self.up)), self.down)
        result = F.pad(result.unflatten(1, (-1, places)).transpose(0, 1).flatten(1, 2), (0, 0, 0, 1))
        taken = result.gather(1, place.expand(-1, -1, width)).unflatten(1, (length, chosen))
        return (taken * gates.unsqueeze(-1)).sum(2)


class Block(nn.Module):
    def __init__(self, config: Config) -> None:
        super().__init__()
        width, self.heads = config.width, config.heads
        self.norm_1, self.norm_2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.query_key_value = nn.Linear(width, 3 * width, bias=False)
        self.output = nn.Linear(width, width, bias=False)
        self.experts = Experts(config)

    def forward(self, x: Tensor) -> Tensor:
        joint = self.query_key_value(self.norm_1(x)).unflatten(-1, (3, self.heads, -1))
        query, key, value = (each.transpose(1, 2) for each in joint.unbind(-3))
        x = x + self.output(attention(query, key, value).transpose(1, 2).flatten(-2))
        return x + self.experts(self.norm_2(x))


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
