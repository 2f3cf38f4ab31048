"""A transformer whose attention is linear in the length: softmax is replaced by a product of positive features.

Katharopoulos et al. 2020, "Transformers are RNNs", arXiv 2006.16236, sections 3.2 and 3.3. Sums over earlier positions
are computed in chunks: products within a chunk, a cumulative sum of states between chunks.
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
    heads: int = 4  # attention heads, each width / heads wide
    chunk: int = 32  # positions

    @classmethod
    def sized(cls, depth: int, vocabulary_size: int, sequence_length: int) -> Self:
        return cls(vocabulary_size, sequence_length, depth=depth, width=64 * depth, heads=depth)


def split_chunks(x: Tensor, chunk: int) -> Tensor:
    """Return `[B, H, T, D]` as `[B, H, chunks, positions, D]`, padded with zeros at its end."""
    return F.pad(x, (0, 0, 0, -x.size(2) % chunk)).unflatten(2, (-1, chunk))


def attend(query: Tensor, key: Tensor, value: Tensor, chunk: int) -> Tensor:
    """Return the average of earlier values, weighted by `query . key`, `[B, H, T, D]`."""
    length = query.size(2)
    value = torch.cat((value, torch.ones_like(value[..., :1])), dim=-1)  # its sum is the normalization
    query, key, value = (split_chunks(x.float(), chunk) for x in (query, key, value))
    states = key.mT @ value
    before = F.pad(states.cumsum(2), (0, 0, 0, 0, 1, 0))[:, :, :-1]  # of all earlier chunks
    sums = (query @ key.mT).tril() @ value + query @ before
    sums = sums.flatten(2, 3)[:, :, :length]
    return sums[..., :-1] / (sums[..., -1:] + 1e-6)


class Block(nn.Module):
    def __init__(self, config: Config) -> None:
        super().__init__()
        width, self.heads, self.chunk = config.width, config.heads, config.chunk
        self.norm_1, self.norm_2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.query_key_value = nn.Linear(width, 3 * width, bias=False)
        self.output = nn.Linear(width, width, bias=False)
        self.up = nn.Linear(width, 4 * width, bias=False)
        self.down = nn.Linear(4 * width, width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        joint = self.query_key_value(self.norm_1(x)).unflatten(-1, (3, self.heads, -1))
        query, key, value = (each.transpose(1, 2) for each in joint.unbind(-3))
        mixed = attend(F.elu(query) + 1, F.elu(key) + 1, value, self.chunk)
        x = x + self.output(mixed.transpose(1, 2).flatten(-2))
        return x + self.down(F.gelu(self.up(self.norm_2(x))))


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
