"""A transformer whose keys and values are rebuilt from a small latent vector per token, and one rotary key.

DeepSeek-AI 2024, "DeepSeek-V2", arXiv 2405.04434, section 2.1. Queries are not compressed, as in its Lite model.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from trainer.models.base import LanguageModel, ParameterGroup, Recipe, pad_vocabulary
from trainer.ops.elementwise import rotate


@dataclass(frozen=True)
class Config:
    vocabulary_size: int  # token ids are below this
    sequence_length: int  # tokens in a training row
    depth: int = 4  # blocks
    width: int = 256  # of the residual stream
    heads: int = 4  # attention heads, each width / heads wide
    latent: int = 64  # width of the compressed keys and values
    rotary: int = 16  # width of the part of queries and keys that is rotated

    @classmethod
    def sized(cls, depth: int, vocabulary_size: int, sequence_length: int) -> Self:
        return cls(vocabulary_size, sequence_length, depth=depth, width=64 * depth, latent=16 * depth, heads=depth)


def build_tables(length: int, size: int, device: torch.device) -> tuple[Tensor, Tensor]:
    """Return `cosine [T, 1, D]` and `sine [T, 1, D/2]` of rotary positions (RoFormer, arXiv 2104.09864)."""
    frequencies = 10_000 ** (-torch.arange(0, size, 2, device=device) / size)
    angles = torch.arange(length, device=device)[:, None, None] * frequencies
    return angles.cos().repeat(1, 1, 2), angles.sin()


class Block(nn.Module):
    def __init__(self, config: Config) -> None:
        super().__init__()
        width, latent = config.width, config.latent
        self.heads, self.size, self.rotary = config.heads, width // config.heads, config.rotary
        self.norm_1, self.norm_2, self.norm_latent = nn.RMSNorm(width), nn.RMSNorm(width), nn.RMSNorm(latent)
        self.query = nn.Linear(width, self.heads * (self.size + self.rotary), bias=False)
        self.compress = nn.Linear(width, latent + self.rotary, bias=False)
        self.expand = nn.Linear(latent, 2 * width, bias=False)
        self.output = nn.Linear(width, width, bias=False)
        self.up = nn.Linear(width, 4 * width, bias=False)
        self.down = nn.Linear(4 * width, width, bias=False)

    def forward(self, x: Tensor, cosine: Tensor, sine: Tensor) -> Tensor:
        normed = self.norm_1(x)
        query = self.query(normed).unflatten(-1, (self.heads, -1))
        query, query_rotary = query.split((self.size, self.rotary), dim=-1)
        latent, key_rotary = self.compress(normed).split((self.expand.in_features, self.rotary), dim=-1)
        key, value = self.expand(self.norm_latent(latent)).unflatten(-1, (2, self.heads, -1)).unbind(-3)
        key_rotary = rotate(key_rotary.unsqueeze(2), cosine, sine).expand(-1, -1, self.heads, -1)
        query = torch.cat((query, rotate(query_rotary, cosine, sine)), dim=-1).transpose(1, 2)
        key = torch.cat((key, key_rotary), dim=-1).transpose(1, 2)
        mixed = F.scaled_dot_product_attention(query, key, value.transpose(1, 2), is_causal=True)
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
        cosine, sine = build_tables(tokens.size(1), self.config.rotary, tokens.device)
        for block in self.blocks:
            x = block(x, cosine, sine)
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
