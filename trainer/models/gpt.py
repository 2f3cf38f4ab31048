"""The baseline: a plain transformer with what the field agreed on by 2026.

From bottom to top, with where each part is from:
- rotary positions (RoFormer, arXiv 2104.09864, eq. 34), so no position embedding;
- parameter-free RMSNorm (arXiv 1910.07467, eq. 4 without g), before each block and right after the embedding;
- QK-norm with a gain (Query-Key Normalization, arXiv 2010.04245, eq. 4; here RMSNorm and one gain per head);
- ReLU^2 in a 4x MLP (Primer, arXiv 2109.08668, section 4.2);
- no biases, an untied head, output projections that start at zero (a block starts as the identity); the head starts
  near zero, so an untrained model scores the uniform rate;
- a soft cap on logits (Gemma 2, arXiv 2408.00118, section 2), at 15 as in modded-nanogpt.
One dial, depth, computes the rest as in nanochat: width is 64 x depth.

Not covered: a key-value cache (the scorer asks whole rows), packing masks (a row may span documents), dropout.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Self

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from trainer.models.base import LanguageModel, ParameterGroup, Recipe, Schedule

PADDING = 64
"""Embedding and head have a multiple of this many rows: odd sizes are slow on GPUs. `logits` cuts the rest off."""


@dataclass(frozen=True)
class Config:
    vocabulary_size: int
    """Token ids are 0 .. vocabulary_size - 1."""
    sequence_length: int
    """Tokens in a training row."""
    depth: int = 4
    """Blocks."""
    width: int = 256
    """Size of the residual stream."""
    heads: int = 4
    """Attention heads; each is width / heads wide, an even number for the rotation."""
    windows: str = "L"
    """Attention of block i is letter i of this, repeated: L sees all before it, S the last `short_window` tokens.
    The last block always sees all. SSSL is for long sequences on a GPU; on a CPU a window saves nothing."""
    short_window: int = 128
    """Tokens an S block sees, the current one among them."""
    rope_base: float = 10_000.0
    """The slowest rotation takes about 2 pi times this many tokens."""
    softcap: float = 15.0
    """Logits stay within +- this."""

    def __post_init__(self) -> None:
        if self.depth < 1 or self.heads < 1 or self.width < 2:
            raise ValueError(f"gpt: depth {self.depth}, heads {self.heads} and width {self.width} must be positive")
        if self.width % self.heads or (self.width // self.heads) % 2:
            raise ValueError(f"gpt: width {self.width} must be an even multiple of heads {self.heads}")
        if not self.windows or set(self.windows) - {"S", "L"}:
            raise ValueError(f"gpt: windows is a word of the letters S and L, not {self.windows!r}")
        if self.short_window < 1 or self.softcap <= 0 or self.rope_base <= 0:
            raise ValueError("gpt: short_window, softcap and rope_base must be positive")

    @classmethod
    def sized(cls, depth: int, vocabulary_size: int, sequence_length: int) -> Self:
        """Heads are 128 wide (what attention kernels like best), 64 in small models, which need more than a few."""
        width = 64 * depth
        head = 128 if width >= 768 and width % 128 == 0 else 64
        return cls(
            vocabulary_size=vocabulary_size,
            sequence_length=sequence_length,
            depth=depth,
            width=width,
            heads=width // head,
            windows="SSSL" if sequence_length >= 1024 else "L",
            short_window=max(sequence_length // 2, 1),
        )

    @property
    def padded_vocabulary_size(self) -> int:
        return math.ceil(self.vocabulary_size / PADDING) * PADDING

    def window(self, block: int) -> int | None:
        """Return how many tokens a block sees, None for all."""
        last = block == self.depth - 1
        return None if last or self.windows[block % len(self.windows)] == "L" else self.short_window


def norm(x: Tensor) -> Tensor:
    """RMSNorm without parameters over the last dimension, in float32 whatever the autocast."""
    return F.rms_norm(x.float(), (x.size(-1),), eps=1e-6).to(x.dtype)


def rotate(x: Tensor, cosine: Tensor, sine: Tensor) -> Tensor:
    """Turn each pair (i, i + D/2) of `x [B, H, T, D]` by its position's angle; the tables are `[T, D/2]`."""
    first, second = x.chunk(2, dim=-1)
    return torch.cat((first * cosine - second * sine, first * sine + second * cosine), dim=-1).to(x.dtype)


def rotation(length: int, size: int, base: float, device: torch.device) -> tuple[Tensor, Tensor]:
    """Return cosine and sine `[length, size / 2]` of every position's angles (RoFormer eq. 15)."""
    rates = base ** -(torch.arange(0, size, 2, device=device, dtype=torch.float32) / size)
    angles = torch.outer(torch.arange(length, device=device, dtype=torch.float32), rates)
    return angles.cos(), angles.sin()


def window_mask(length: int, window: int, device: torch.device) -> Tensor:
    """Return `[T, T]` booleans: may the row's position look at the column's?"""
    positions = torch.arange(length, device=device)
    distance = positions[:, None] - positions[None, :]
    return (distance >= 0) & (distance < window)


class Attention(nn.Module):
    """Causal self-attention with normalised queries and keys."""

    def __init__(self, config: Config, block: int) -> None:
        super().__init__()
        self.heads = config.heads
        self.window = config.window(block)
        self.query = nn.Linear(config.width, config.width, bias=False)
        self.key = nn.Linear(config.width, config.width, bias=False)
        self.value = nn.Linear(config.width, config.width, bias=False)
        self.output = nn.Linear(config.width, config.width, bias=False)
        # After the norm a query meets its own key at sqrt(head width): the gain lets a head be sharper or softer.
        self.gain = nn.Parameter(torch.ones(config.heads))

    def split(self, x: Tensor) -> Tensor:
        """`[B, T, H x D] -> [B, H, T, D]`."""
        return x.unflatten(-1, (self.heads, -1)).transpose(1, 2)

    def keys(self, x: Tensor) -> Tensor:
        """Return the keys `[B, H, T, D]`, not yet normalised or rotated. Other architectures put theirs here."""
        return self.split(self.key(x))

    def forward(self, x: Tensor, cosine: Tensor, sine: Tensor) -> Tensor:
        query = rotate(norm(self.split(self.query(x))), cosine, sine) * self.gain[:, None, None]
        key = rotate(norm(self.keys(x)), cosine, sine)
        value = self.split(self.value(x))
        length = x.size(1)
        if self.window is None or self.window >= length:
            mixed = F.scaled_dot_product_attention(query.to(value.dtype), key.to(value.dtype), value, is_causal=True)
        else:
            mask = window_mask(length, self.window, x.device)
            mixed = F.scaled_dot_product_attention(query.to(value.dtype), key.to(value.dtype), value, attn_mask=mask)
        return self.output(mixed.transpose(1, 2).flatten(-2))


class MLP(nn.Module):
    def __init__(self, config: Config) -> None:
        super().__init__()
        self.up = nn.Linear(config.width, 4 * config.width, bias=False)
        self.down = nn.Linear(4 * config.width, config.width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.down(F.relu(self.up(x)).square())


class Model(LanguageModel):
    attention: type[Attention] = Attention
    """Which attention the blocks use: an architecture that changes only this sets only this."""

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.config = config
        self.embedding = nn.Embedding(config.padded_vocabulary_size, config.width)
        self.attentions = nn.ModuleList(self.attention(config, block) for block in range(config.depth))
        self.mlps = nn.ModuleList(MLP(config) for _ in range(config.depth))
        self.head = nn.Linear(config.width, config.padded_vocabulary_size, bias=False)
        self.initialise()

    def initialise(self) -> None:
        """Embeddings at scale 1 (a norm follows), matrices uniform of variance 1 / fan-in, ends of branches at zero."""
        nn.init.normal_(self.embedding.weight, std=1.0)
        nn.init.normal_(self.head.weight, std=0.001)
        bound = math.sqrt(3 / self.config.width)
        for attention, mlp in zip(self.attentions, self.mlps, strict=True):
            for matrix in (attention.query, attention.key, attention.value, mlp.up):
                nn.init.uniform_(matrix.weight, -bound, bound)
            nn.init.zeros_(attention.output.weight)
            nn.init.zeros_(mlp.down.weight)

    def features(self, tokens: Tensor) -> Tensor:
        head_width = self.config.width // self.config.heads
        cosine, sine = rotation(tokens.size(1), head_width, self.config.rope_base, tokens.device)
        x = norm(self.embedding(tokens))
        for attention, mlp in zip(self.attentions, self.mlps, strict=True):
            x = x + attention(norm(x), cosine, sine)
            x = x + mlp(norm(x))
        return norm(x)

    def logits(self, features: Tensor) -> Tensor:
        # Divided by the cap before the head and not after: the features are a small tensor, the logits a large one.
        logits = self.head(features / self.config.softcap)
        if self.config.padded_vocabulary_size > self.config.vocabulary_size:
            logits = logits[..., : self.config.vocabulary_size]
        return self.config.softcap * torch.tanh(logits.float())


def recipe(config: Config) -> Recipe:
    """Muon for matrices, AdamW for the rest, its rates ~ 1/sqrt(width) as in nanochat (whose reference width is 768).

    The values are the best of eleven tried at depth 2, 250 steps of 1,024 tokens, one seed: a guess elsewhere.
    nanochat has 0.02 for its matrices, with 512 times the batch.
    """
    scale = (config.width / 768) ** -0.5
    return Recipe(
        groups=(
            ParameterGroup("embedding", ("embedding.*",), "adamw", learning_rate=0.1 * scale, betas=(0.8, 0.95)),
            ParameterGroup("head", ("head.*",), "adamw", learning_rate=0.004 * scale, betas=(0.8, 0.95)),
            ParameterGroup("scalars", ("*.gain", "*.gate"), "adamw", learning_rate=0.02, betas=(0.8, 0.95)),
            ParameterGroup("matrices", ("attentions.*", "mlps.*"), "muon", learning_rate=0.01, weight_decay=0.02),
        ),
        schedule=Schedule(warmup=0.01, warmdown=0.6),
    )
