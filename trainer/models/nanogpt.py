"""The plain GPT-2 shape with tuned AdamW, as in nanoGPT: the reference for the baseline's parts.

GPT-2 (Radford et al. 2019, https://github.com/openai/gpt-2) in nanoGPT's form (https://github.com/karpathy/nanoGPT):
learned positions, LayerNorm before each branch and at the end, GELU in a 4x MLP, biases, a tied head, initial values of
standard deviation 0.02. Queries, keys and values come from one matrix product.

Not covered: dropout (nanoGPT trains without), longer rows than the position table has.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Self

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from trainer.models.base import LanguageModel, ParameterGroup, Recipe, Schedule, pad_vocabulary
from trainer.ops.attention import attention

KeysAndValues = tuple[Tensor, Tensor]  # a block's keys and values so far, `[B, H, T, D]` each


@dataclass(frozen=True)
class Config:
    vocabulary_size: int
    """Token ids are 0 .. vocabulary_size - 1."""
    sequence_length: int
    """Tokens in a training row, and the maximum context."""
    depth: int = 12
    """Blocks."""
    width: int = 768
    """Size of the residual stream."""
    heads: int = 12
    """Attention heads, each width / heads wide."""
    tied_head: bool = True
    """The head is the embedding, as in GPT-2."""

    def __post_init__(self) -> None:
        if min(self.depth, self.heads, self.width) < 1 or self.width % self.heads:
            sizes = f"depth {self.depth} must be positive, width {self.width} a multiple of heads {self.heads}"
            raise ValueError(f"nanogpt: {sizes}")

    @classmethod
    def sized(cls, depth: int, vocabulary_size: int, sequence_length: int) -> Self:
        """Return a config with `depth` heads of 64. Depth 12 has GPT-2's width of 768 and 12 heads."""
        return cls(vocabulary_size, sequence_length, depth=depth, width=64 * depth, heads=depth)


class NanoGPTBlock(nn.Module):
    def __init__(self, config: Config) -> None:
        super().__init__()
        width = config.width
        self.heads = config.heads
        self.norm_1, self.norm_2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.query_key_value = nn.Linear(width, 3 * width)
        self.output = nn.Linear(width, width)
        self.up = nn.Linear(width, 4 * width)
        self.down = nn.Linear(4 * width, width)

    def forward(self, x: Tensor, past: KeysAndValues | None = None) -> tuple[Tensor, KeysAndValues]:
        joint = self.query_key_value(self.norm_1(x)).unflatten(-1, (3, self.heads, -1))
        query, key, value = (each.transpose(1, 2) for each in joint.unbind(-3))
        if past is not None:
            key, value = torch.cat((past[0], key), dim=2), torch.cat((past[1], value), dim=2)
        x = x + self.output(attention(query, key, value).transpose(1, 2).flatten(-2))
        return x + self.down(F.gelu(self.up(self.norm_2(x)))), (key, value)


class Model(LanguageModel):
    def __init__(self, config: Config) -> None:
        super().__init__()
        self.config = config
        self.embedding = nn.Embedding(pad_vocabulary(config.vocabulary_size), config.width)
        self.positions = nn.Embedding(config.sequence_length, config.width)
        self.blocks = nn.ModuleList(NanoGPTBlock(config) for _ in range(config.depth))
        self.norm = nn.LayerNorm(config.width)
        padded = pad_vocabulary(config.vocabulary_size)
        self.head = None if config.tied_head else nn.Linear(config.width, padded, bias=False)
        self.initialize()

    def initialize(self) -> None:
        """GPT-2's initialization: std 0.02, over sqrt(branches) where a branch ends; biases zero."""
        for name, module in self.named_modules():
            if isinstance(module, nn.Linear | nn.Embedding):
                ends_branch = name.endswith(("output", "down"))
                nn.init.normal_(module.weight, std=0.02 / math.sqrt(2 * self.config.depth) if ends_branch else 0.02)
            if isinstance(module, nn.Linear) and module.bias is not None:
                nn.init.zeros_(module.bias)

    def features(self, tokens: Tensor) -> Tensor:
        return self.advance(tokens)[0]

    def advance(self, tokens: Tensor, state: Any = None) -> tuple[Tensor, list[KeysAndValues]]:
        start = state[0][0].size(2) if state else 0
        x = self.embedding(tokens) + self.positions.weight[start : start + tokens.size(1)]
        after = []
        for block, past in zip(self.blocks, state or [None] * len(self.blocks), strict=True):
            x, present = block(x, past)
            after.append(present)
        return self.norm(x), after

    def logits(self, features: Tensor) -> Tensor:
        logits = F.linear(features, self.embedding.weight) if self.head is None else self.head(features)
        return logits[..., : self.config.vocabulary_size]


def recipe(config: Config) -> Recipe:
    """Return nanoGPT's settings: weight decay on all matrices, a cosine to a tenth, gradients clipped at 1.

    The rate is its 6e-4 at width 768 and ~ 1/sqrt(width) below: of 6e-4, 9e-4, 1.2e-3, 2.4e-3 and 4.8e-3, 1.2e-3 was
    best at width 192 (depth 3, 255 steps of 2,048 tokens of Gutenberg, one seed).
    """
    rate = 6e-4 * (768 / config.width) ** 0.5
    return Recipe(
        groups=(
            ParameterGroup("vectors", ("*.bias", "*norm*.weight"), "adamw", rate, epsilon=1e-8),
            ParameterGroup("matrices", ("*",), "adamw", rate, weight_decay=0.1, epsilon=1e-8),
        ),
        schedule=Schedule(warmup=0.05, final=0.1, shape="cosine"),
        clip=1.0,
    )
