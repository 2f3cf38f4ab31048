"""A transformer whose query heads share a few heads of keys and values, as in Llama 2 and Mistral.

Ainslie et al. 2023, "GQA: Training Generalized Multi-Query Transformer Models", arXiv 2305.13245. The
MLP is a SwiGLU (Shazeer 2020, arXiv 2002.05202). Positions are learned to keep the example short.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self

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
    key_heads: int = 2  # heads of keys and values

    @classmethod
    def sized(cls, depth: int, vocabulary_size: int, sequence_length: int) -> Self:
        sizes = {"width": 64 * depth, "key_heads": max(1, depth // 2), "heads": depth}
        return cls(vocabulary_size, sequence_length, depth=depth, **sizes)


class Block(nn.Module):
    def __init__(self, config: Config) -> None:
        super().__init__()
        width, hidden = config.width, 2 * config.width
        self.heads, self.key_heads, self.size = config.heads, config.key_heads, width // config.heads
        self.norm_1, self.norm_2 = nn.RMSNorm(width), nn.RMSNorm(width)
        self.query = nn.Linear(width, width, bias=False)
        self.key_value = nn.Linear(width, 2 * self.key_heads * self.size, bias=False)
        self.output = nn.Linear(width, width, bias=False)
        self.gate_up = nn.Linear(width, 2 * hidden, bias=False)
        self.down = nn.Linear(hidden, width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        normed = self.norm_1(x)
        query = self.query(normed).unflatten(-1, (self.heads, self.size)).transpose(1, 2)
        key_value = self.key_value(normed).unflatten(-1, (2 * self.key_heads, self.size)).transpose(1, 2)
        key, value = key_value.repeat_interleave(self.heads // self.key_heads, dim=1).chunk(2, dim=1)
        x = x + self.output(attention(query, key, value).transpose(1, 2).flatten(-2))
        gate, up = self.gate_up(self.norm_2(x)).chunk(2, dim=-1)
        return x + self.down(F.silu(gate) * up)


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
