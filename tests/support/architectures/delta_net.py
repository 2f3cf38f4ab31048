"""A linear attention whose state is corrected by each token: it replaces what the state holds for a key.

Yang et al. 2024, "Parallelizing Linear Transformers with the Delta Rule over Sequence Length", arXiv 2406.06484,
section 3: within a chunk the corrections are the solution of a triangular system; the state goes from chunk to chunk.
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
    chunk: int = 16  # positions

    @classmethod
    def sized(cls, depth: int, vocabulary_size: int, sequence_length: int) -> Self:
        return cls(vocabulary_size, sequence_length, depth=depth, width=64 * depth, heads=depth)


def split_chunks(x: Tensor, chunk: int) -> Tensor:
    """Return `[B, H, T, D]` as `[B, H, chunks, positions, D]`, padded with zeros at its end."""
    return F.pad(x, (0, 0, 0, -x.size(2) % chunk)).unflatten(2, (-1, chunk))


def attend(query: Tensor, key: Tensor, value: Tensor, strength: Tensor, chunk: int) -> Tensor:
    """Return `query . state` at each position, `[B, H, T, D]`; `strength [B, H, T, 1]` of 1 replaces, 0 keeps."""
    length = query.size(2)
    query, key, value, strength = (split_chunks(x.float(), chunk) for x in (query, key, value, strength))
    system = (strength * (key @ key.mT)).tril(-1) + torch.eye(chunk, device=key.device)
    solved = torch.linalg.solve_triangular(
        system, strength * torch.cat((key, value), dim=-1), upper=False, unitriangular=True
    )
    remove, add = solved.chunk(2, dim=-1)
    inside = (query @ key.mT).tril()
    state, results = key.new_zeros(*key.shape[:2], key.size(-1), value.size(-1)), []
    for number in range(key.size(2)):
        change = add[:, :, number] - remove[:, :, number] @ state
        results.append(query[:, :, number] @ state + inside[:, :, number] @ change)
        state = state + key[:, :, number].mT @ change
    return torch.cat(results, dim=2)[:, :, :length]


class Block(nn.Module):
    def __init__(self, config: Config) -> None:
        super().__init__()
        width, self.heads, self.chunk = config.width, config.heads, config.chunk
        self.norm_1, self.norm_2, self.norm_head = nn.RMSNorm(width), nn.RMSNorm(width), nn.RMSNorm(width // self.heads)
        self.query_key_value = nn.Linear(width, 3 * width, bias=False)
        self.strength = nn.Linear(width, self.heads, bias=False)
        self.output = nn.Linear(width, width, bias=False)
        self.up = nn.Linear(width, 4 * width, bias=False)
        self.down = nn.Linear(4 * width, width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        normed = self.norm_1(x)
        joint = F.silu(self.query_key_value(normed)).unflatten(-1, (3, self.heads, -1))
        query, key, value = (each.transpose(1, 2) for each in joint.unbind(-3))
        query, key = F.normalize(query.float(), dim=-1), F.normalize(key.float(), dim=-1)
        strength = self.strength(normed).sigmoid().mT.unsqueeze(-1)
        with torch.autocast(x.device.type, enabled=False):  # the triangular system is solved in fp32
            mixed = attend(query, key, value, strength, self.chunk)
        x = x + self.output(self.norm_head(mixed).transpose(1, 2).flatten(-2))
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
