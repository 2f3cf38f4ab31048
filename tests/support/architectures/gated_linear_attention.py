"""A linear attention whose state decays by a gate of each token and channel, computed in chunks.

Yang et al. 2023, "Gated Linear Attention Transformers with Hardware-Efficient Training", arXiv 2312.06635, section 4.
Without the gates of a token it is RetNet (Sun et al. 2023, arXiv 2307.08621). The loop over chunks has a fixed length.
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
    gate_rank: int = 16  # of the matrix that computes the gates

    @classmethod
    def sized(cls, depth: int, vocabulary_size: int, sequence_length: int) -> Self:
        return cls(vocabulary_size, sequence_length, depth=depth, width=64 * depth, heads=depth)


def split_chunks(x: Tensor, chunk: int) -> Tensor:
    """Return `[B, H, T, D]` as `[B, H, chunks, positions, D]`, padded with zeros at its end."""
    return F.pad(x, (0, 0, 0, -x.size(2) % chunk)).unflatten(2, (-1, chunk))


def attend(query: Tensor, key: Tensor, value: Tensor, log_gate: Tensor, chunk: int) -> Tensor:
    """Return `query . state` at each position, `[B, H, T, D]`; the state decays by the gates and adds `key x value`."""
    length = query.size(2)
    query, key, value, log_gate = (split_chunks(x.float(), chunk) for x in (query, key, value, log_gate))
    decay = log_gate.cumsum(3)  # since the start of the chunk
    total = decay[..., -1:, :]
    query, key_inside, key_after = query * decay.exp(), key * (-decay).exp(), key * (total - decay).exp()
    inside = (query @ key_inside.mT).tril() @ value
    added, kept = key_after.mT @ value, total.mT.exp()
    state, before = torch.zeros_like(added[:, :, 0]), []
    for number in range(added.size(2)):
        before.append(state)
        state = state * kept[:, :, number] + added[:, :, number]
    return (inside + query @ torch.stack(before, dim=2)).flatten(2, 3)[:, :, :length]


class Block(nn.Module):
    def __init__(self, config: Config) -> None:
        super().__init__()
        width, self.heads, self.chunk = config.width, config.heads, config.chunk
        self.norm_1, self.norm_2, self.norm_head = nn.RMSNorm(width), nn.RMSNorm(width), nn.RMSNorm(width // self.heads)
        self.query_key_value = nn.Linear(width, 3 * width, bias=False)
        self.gate_down = nn.Linear(width, config.gate_rank, bias=False)
        self.gate_up = nn.Linear(config.gate_rank, width)
        self.output_gate = nn.Linear(width, width)
        self.output = nn.Linear(width, width, bias=False)
        self.up = nn.Linear(width, 4 * width, bias=False)
        self.down = nn.Linear(4 * width, width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        normed = self.norm_1(x)
        joint = self.query_key_value(normed).unflatten(-1, (3, self.heads, -1))
        query, key, value = (each.transpose(1, 2) for each in joint.unbind(-3))
        gates = F.logsigmoid(self.gate_up(self.gate_down(normed)).float()) / 16  # near 1, as in the paper
        mixed = attend(query, key, value, gates.unflatten(-1, (self.heads, -1)).transpose(1, 2), self.chunk)
        mixed = self.norm_head(mixed).transpose(1, 2).flatten(-2)
        x = x + self.output(mixed * F.silu(self.output_gate(normed)))
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
