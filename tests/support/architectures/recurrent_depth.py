"""A transformer that repeats a core of blocks on a random state, reading its input again each time.

Geiping et al. 2025, "Scaling up Test-Time Compute with Latent Reasoning: A Recurrent Depth Approach", arXiv 2502.05171,
section 3. The number of repetitions is fixed, since a graph is; gradients flow through the last ones only, as in the
paper. In evaluation the first state is zero, so that the same tokens get the same output.
"""

from __future__ import annotations

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
    repetitions: int = 6  # of the core
    repetitions_with_gradient: int = 4  # the last ones
    noise: float = 0.2  # standard deviation of the first state

    @classmethod
    def sized(cls, depth: int, vocabulary_size: int, sequence_length: int) -> Self:
        return cls(vocabulary_size, sequence_length, depth=depth, width=64 * depth, heads=depth)


class Block(nn.Module):
    def __init__(self, config: Config) -> None:
        super().__init__()
        width, self.heads = config.width, config.heads
        self.norm_1, self.norm_2 = nn.RMSNorm(width), nn.RMSNorm(width)
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
        width, rows = config.width, pad_vocabulary(config.vocabulary_size)
        self.embedding = nn.Embedding(rows, width)
        self.positions = nn.Embedding(config.sequence_length, width)
        self.prelude, self.coda = Block(config), Block(config)
        self.adapter = nn.Linear(2 * width, width, bias=False)
        self.core = nn.ModuleList(Block(config) for _ in range(config.depth))
        self.norm_core, self.norm = nn.RMSNorm(width), nn.RMSNorm(width)
        self.head = nn.Linear(width, rows, bias=False)

    def features(self, tokens: Tensor) -> Tensor:
        x = self.prelude(self.embedding(tokens) + self.positions.weight[: tokens.size(1)])
        state = self.config.noise * torch.randn_like(x) if self.training else torch.zeros_like(x)
        with torch.no_grad():
            for _ in range(self.config.repetitions - self.config.repetitions_with_gradient):
                state = self.repeat(state, x)
        for _ in range(self.config.repetitions_with_gradient):
            state = self.repeat(state, x)
        return self.norm(self.coda(state))

    def repeat(self, state: Tensor, x: Tensor) -> Tensor:
        state = self.adapter(torch.cat((state, x), dim=-1))
        for block in self.core:
            state = block(state)
        return self.norm_core(state)

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
