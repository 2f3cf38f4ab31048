"""A large transformer over patches of tokens, and a small one that writes the tokens of each patch.

Yu et al. 2023, "MEGABYTE", arXiv 2305.07185, section 2. The large one sees whole earlier patches (its input is
shifted by one patch), the small one the earlier tokens of its own patch. The row is padded to whole patches.
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
    patch: int = 8  # tokens
    local_depth: int = 2  # blocks of the small transformer
    local_width: int = 128  # of its residual stream

    @classmethod
    def sized(cls, depth: int, vocabulary_size: int, sequence_length: int) -> Self:
        sizes = {"width": 64 * depth, "local_width": 32 * depth, "local_depth": max(1, depth // 2), "heads": depth}
        return cls(vocabulary_size, sequence_length, depth=depth, **sizes)


class Block(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm_1, self.norm_2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.query_key_value = nn.Linear(width, 3 * width, bias=False)
        self.output = nn.Linear(width, width, bias=False)
        self.up = nn.Linear(width, 4 * width, bias=False)
        self.down = nn.Linear(4 * width, width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        joint = self.query_key_value(self.norm_1(x)).unflatten(-1, (3, self.heads, -1))
        query, key, value = (each.transpose(1, 2) for each in joint.unbind(-3))
        x = x + self.output(attention(query, key, value).transpose(1, 2).flatten(-2))
        return x + self.down(F.gelu(self.up(self.norm_2(x))))


class Model(LanguageModel):
    def __init__(self, config: Config) -> None:
        super().__init__()
        self.config = config
        rows, width, local = pad_vocabulary(config.vocabulary_size), config.width, config.local_width
        self.embedding, self.local_embedding = nn.Embedding(rows, width // config.patch), nn.Embedding(rows, local)
        self.positions = nn.Embedding(math.ceil(config.sequence_length / config.patch), width)
        self.local_positions = nn.Embedding(config.patch, local)
        self.first_patch = nn.Parameter(torch.zeros(width))
        self.blocks = nn.ModuleList(Block(width, config.heads) for _ in range(config.depth))
        self.to_local = nn.Linear(width // config.patch, local, bias=False)
        self.local_blocks = nn.ModuleList(Block(local, config.heads) for _ in range(config.local_depth))
        self.norm_global, self.norm = nn.LayerNorm(width), nn.LayerNorm(local)
        self.head = nn.Linear(local, rows, bias=False)

    def features(self, tokens: Tensor) -> Tensor:
        length, patch = tokens.size(1), self.config.patch
        tokens = F.pad(tokens, (0, -length % patch))
        patches = self.embedding(tokens).unflatten(1, (-1, patch)).flatten(2)  # [B, T / P, width]
        first = self.first_patch.expand(tokens.size(0), 1, -1)
        x = torch.cat((first, patches[:, :-1]), dim=1) + self.positions.weight[: patches.size(1)]
        for block in self.blocks:
            x = block(x)
        context = self.to_local(self.norm_global(x).unflatten(-1, (patch, -1))).flatten(0, 1)  # [B T / P, P, local]
        x = context + self.local_embedding(tokens).unflatten(1, (-1, patch)).flatten(0, 1) + self.local_positions.weight
        for block in self.local_blocks:
            x = block(x)
        return self.norm(x).unflatten(0, (tokens.size(0), -1)).flatten(1, 2)[:, :length]

    def logits(self, features: Tensor) -> Tensor:
        return self.head(features)[..., : self.config.vocabulary_size]


def recipe(config: Config) -> Recipe:
    rate = 2e-3 * (256 / config.width) ** 0.5
    return Recipe(
        groups=(
            ParameterGroup("vectors", ("*.bias", "*norm*.weight", "first_patch"), "adamw", rate),
            ParameterGroup("matrices", ("*",), "adamw", rate, weight_decay=0.1),
        ),
        clip=1.0,
    )
