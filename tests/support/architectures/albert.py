"""A transformer whose blocks are all the same block, with a narrow embedding that is widened once.

Lan et al. 2019, "ALBERT: A Lite BERT", arXiv 1909.11942, section 3.1; as a causal model. The head reuses the embedding.
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
    embedding_width: int = 64  # of the embedding and of the head

    @classmethod
    def sized(cls, depth: int, vocabulary_size: int, sequence_length: int) -> Self:
        sizes = {"width": 64 * depth, "embedding_width": 16 * depth, "heads": depth}
        return cls(vocabulary_size, sequence_length, depth=depth, **sizes)


class Block(nn.Module):
    def __init__(self, config: Config) -> None:
        super().__init__()
        width, self.heads = config.width, config.heads
        self.norm_1, self.norm_2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.query_key_value = nn.Linear(width, 3 * width)
        self.output = nn.Linear(width, width)
        self.up = nn.Linear(width, 4 * width)
        self.down = nn.Linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        joint = self.query_key_value(self.norm_1(x)).unflatten(-1, (3, self.heads, -1))
        query, key, value = (each.transpose(1, 2) for each in joint.unbind(-3))
        x = x + self.output(attention(query, key, value).transpose(1, 2).flatten(-2))
        return x + self.down(F.gelu(self.up(self.norm_2(x))))


class Model(LanguageModel):
    def __init__(self, config: Config) -> None:
        super().__init__()
        self.config = config
        narrow = config.embedding_width
        self.embedding = nn.Embedding(pad_vocabulary(config.vocabulary_size), narrow)
        self.positions = nn.Embedding(config.sequence_length, narrow)
        self.widen, self.narrow = nn.Linear(narrow, config.width), nn.Linear(config.width, narrow)
        self.block = Block(config)
        self.norm = nn.LayerNorm(narrow)

    def features(self, tokens: Tensor) -> Tensor:
        x = self.widen(self.embedding(tokens) + self.positions.weight[: tokens.size(1)])
        for _ in range(self.config.depth):
            x = self.block(x)
        return self.norm(F.gelu(self.narrow(x)))

    def logits(self, features: Tensor) -> Tensor:
        return F.linear(features, self.embedding.weight)[..., : self.config.vocabulary_size]


def recipe(config: Config) -> Recipe:
    rate = 2e-3 * (256 / config.width) ** 0.5
    return Recipe(
        groups=(
            ParameterGroup("vectors", ("*.bias", "*norm*.weight"), "adamw", rate),
            ParameterGroup("matrices", ("*",), "adamw", rate, weight_decay=0.1),
        ),
        clip=1.0,
    )
