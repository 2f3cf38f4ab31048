"""Blocks that mix positions by convolutions as long as the row, computed with Fourier transforms.

Fu et al. 2023, "Simple Hardware-Efficient Long Convolutions for Sequence Modeling", arXiv 2302.06646, section 3:
kernels are parameters, squashed towards zero. Rows are padded to twice their length: a transform of the row itself
would be circular and show later tokens, as FNet's does (Lee-Thorp et al. 2021, arXiv 2105.03824).
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
    squash: float = 0.001  # what is subtracted from a kernel's absolute values

    @classmethod
    def sized(cls, depth: int, vocabulary_size: int, sequence_length: int) -> Self:
        return cls(vocabulary_size, sequence_length, depth=depth, width=64 * depth)


class Block(nn.Module):
    def __init__(self, config: Config) -> None:
        super().__init__()
        width, self.squash = config.width, config.squash
        self.norm_1, self.norm_2 = nn.LayerNorm(width), nn.LayerNorm(width)
        decay = torch.exp(-torch.arange(config.sequence_length) / 16)
        self.kernel = nn.Parameter(0.1 * torch.randn(width, config.sequence_length) * decay)
        self.skip = nn.Parameter(torch.randn(width))
        self.value_gate = nn.Linear(width, 2 * width)
        self.output = nn.Linear(width, width)
        self.up = nn.Linear(width, 4 * width, bias=False)
        self.down = nn.Linear(4 * width, width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        value, gate = self.value_gate(self.norm_1(x)).chunk(2, dim=-1)
        x = x + self.output(self.convolve(value.float()) * F.silu(gate))
        return x + self.down(F.gelu(self.up(self.norm_2(x))))

    def convolve(self, x: Tensor) -> Tensor:
        length = x.size(1)
        kernel = F.relu(self.kernel.abs() - self.squash) * self.kernel.sign()
        spectrum = torch.fft.rfft(x, n=2 * length, dim=1) * torch.fft.rfft(kernel[:, :length].T, n=2 * length, dim=0)
        return torch.fft.irfft(spectrum, n=2 * length, dim=1)[:, :length] + self.skip * x


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
            ParameterGroup("vectors", ("*.bias", "*norm*.weight", "*.kernel", "*.skip"), "adamw", rate),
            ParameterGroup("matrices", ("*",), "adamw", rate, weight_decay=0.1),
        ),
        clip=1.0,
    )
