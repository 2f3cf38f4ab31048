"""Blocks of dilated causal convolutions with gates.

Dauphin et al. 2016, "Language Modeling with Gated Convolutional Networks", arXiv 1612.08083, section 2; dilations as in
WaveNet (van den Oord et al. 2016, arXiv 1609.03499). Rows are padded at their start, so no position sees a later one.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self

import torch.nn.functional as F
from torch import Tensor, nn

from trainer.models.base import LanguageModel, ParameterGroup, Recipe, pad_vocabulary


@dataclass(frozen=True)
class Config:
    vocabulary_size: int  # token ids are below this
    sequence_length: int  # tokens in a training row
    depth: int = 4  # blocks
    width: int = 256  # of the residual stream
    kernel: int = 4  # positions of a convolution

    @classmethod
    def sized(cls, depth: int, vocabulary_size: int, sequence_length: int) -> Self:
        return cls(vocabulary_size, sequence_length, depth=depth, width=64 * depth)


class Block(nn.Module):
    def __init__(self, config: Config, number: int) -> None:
        super().__init__()
        dilation = 2 ** (number % 4)
        self.padding = (config.kernel - 1) * dilation
        self.norm = nn.LayerNorm(config.width)
        self.convolution = nn.Conv1d(config.width, 2 * config.width, config.kernel, dilation=dilation)
        self.output = nn.Linear(config.width, config.width)

    def forward(self, x: Tensor) -> Tensor:
        values = F.pad(self.norm(x).mT, (self.padding, 0))
        return x + self.output(F.glu(self.convolution(values), dim=1).mT)


class Model(LanguageModel):
    def __init__(self, config: Config) -> None:
        super().__init__()
        self.config = config
        rows = pad_vocabulary(config.vocabulary_size)
        self.embedding = nn.Embedding(rows, config.width)
        self.blocks = nn.ModuleList(Block(config, number) for number in range(config.depth))
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
