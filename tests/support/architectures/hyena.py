"""Blocks that alternate gates with long convolutions whose kernels a small network computes from the position.

Poli et al. 2023, "Hyena Hierarchy", arXiv 2302.10866, section 3, order 2. The network's cost does not depend on the
number of rows.
"""

from __future__ import annotations

import math
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
    order: int = 2  # gates, each with a long convolution
    filter_width: int = 32  # of the network that computes the kernels
    frequencies: int = 8  # of its input
    short: int = 3  # positions of the convolution before the gates

    @classmethod
    def sized(cls, depth: int, vocabulary_size: int, sequence_length: int) -> Self:
        return cls(vocabulary_size, sequence_length, depth=depth, width=64 * depth)


class Filter(nn.Module):
    """Computes the kernels of all positions, `[order, T, width]`."""

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.config = config
        hidden = config.filter_width
        self.first = nn.Linear(1 + 2 * config.frequencies, hidden)
        self.second = nn.Linear(hidden, hidden)
        self.last = nn.Linear(hidden, config.order * config.width, bias=False)
        self.decay = nn.Parameter(torch.linspace(1, 4, config.width))

    def forward(self, length: int, device: torch.device) -> Tensor:
        time = torch.arange(length, device=device).unsqueeze(-1) / self.config.sequence_length
        angles = 2 * math.pi * time * torch.arange(1, self.config.frequencies + 1, device=device)
        hidden = self.first(torch.cat((time, angles.cos(), angles.sin()), dim=-1)).sin()
        kernels = self.last(self.second(hidden).sin()).float().unflatten(-1, (self.config.order, -1)).transpose(0, 1)
        return kernels * torch.exp(-self.decay.abs() * 5 * time)


class Block(nn.Module):
    def __init__(self, config: Config) -> None:
        super().__init__()
        width, self.order = config.width, config.order
        self.norm_1, self.norm_2 = nn.LayerNorm(width), nn.LayerNorm(width)
        inner = (config.order + 1) * width
        self.input = nn.Linear(width, inner)
        self.short = nn.Conv1d(inner, inner, config.short, groups=inner, padding=config.short - 1)
        self.filter = Filter(config)
        self.skip = nn.Parameter(torch.randn(config.order, width))
        self.output = nn.Linear(width, width)
        self.up = nn.Linear(width, 4 * width, bias=False)
        self.down = nn.Linear(4 * width, width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        length = x.size(1)
        joint = self.short(self.input(self.norm_1(x)).mT)[..., :length].mT.float()
        value, *gates = joint.chunk(self.order + 1, dim=-1)
        spectra = torch.fft.rfft(self.filter(length, x.device), n=2 * length, dim=1)
        for gate, spectrum, skip in zip(gates, spectra.unbind(), self.skip.unbind(), strict=True):
            product = torch.fft.rfft(value, n=2 * length, dim=1) * spectrum
            value = gate * (torch.fft.irfft(product, n=2 * length, dim=1)[:, :length] + skip * value)
        x = x + self.output(value)
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
            ParameterGroup("vectors", ("*.bias", "*norm*.weight", "*.skip", "*.decay"), "adamw", rate),
            ParameterGroup("matrices", ("*",), "adamw", rate, weight_decay=0.1),
        ),
        clip=1.0,
    )
