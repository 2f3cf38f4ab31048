"""The contract between an architecture and everything around it: the loop, the optimizer, the scorer.

An architecture is one file beside this one. It has
- `Config`: a frozen dataclass of plain values (it is saved as JSON), one sentence under each field, with the
  classmethod `sized(depth, vocabulary_size, sequence_length)` that computes every field from one dial;
- `Model(config)`: a `LanguageModel`;
- `recipe(config) -> Recipe`: how it wants to be optimized.
The first sentence of the file's docstring is its description on the board. The dict in `__init__.py` gets one line.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal, Protocol, Self

from torch import Tensor, nn


class LanguageModel(nn.Module):
    """Text in, a distribution over the next token out.

    Causal: the answer at position t depends on tokens 0..t only. Stateless: the same tokens get the same answer,
    whatever was asked before and whatever shares the batch. The scorer tests both and refuses a model that breaks them.
    """

    def features(self, tokens: Tensor) -> Tensor:
        """Return what the head reads, `[B, T, D]`, for token ids `[B, T]` (int64). T may be less than in training."""
        raise NotImplementedError

    def logits(self, features: Tensor) -> Tensor:
        """Return unnormalised log-probabilities `[B, T, V]`, V being exactly the vocabulary size."""
        raise NotImplementedError

    def forward(self, tokens: Tensor) -> Tensor:
        return self.logits(self.features(tokens))


class ArchitectureConfig(Protocol):
    """What every `Config` has."""

    vocabulary_size: int
    sequence_length: int

    @classmethod
    def sized(cls, depth: int, vocabulary_size: int, sequence_length: int) -> Self:
        """Compute every field from one dial."""


class Architecture(Protocol):
    """An architecture's module."""

    Config: type[ArchitectureConfig]
    Model: type[LanguageModel]

    def recipe(self, config: Any) -> Recipe:
        """How this size wants to be optimized."""


@dataclass(frozen=True)
class ParameterGroup:
    """Parameters that share an optimizer and its settings."""

    name: str
    match: tuple[str, ...]
    """Shell patterns over parameter names. The first group that matches takes a parameter; each must find a group."""
    optimizer: Literal["muon", "adamw"]
    """`muon` takes matrices only (two dimensions, or stacks of them)."""
    learning_rate: float
    """At the schedule's top."""
    weight_decay: float = 0.0
    """Decoupled: each step shrinks weights by `learning rate x weight_decay`."""
    momentum: float = 0.95
    """Muon only."""
    betas: tuple[float, float] = (0.9, 0.95)
    """AdamW only."""
    epsilon: float = 1e-10
    """AdamW only. Small, since zero-initialised projections see tiny gradients at first."""


@dataclass(frozen=True)
class Schedule:
    """Trapezoid over the used fraction of the budget: up, flat, a long way down, so every run ends annealed."""

    warmup: float = 0.02
    """Fraction of the budget in which the rate climbs."""
    warmdown: float = 0.6
    """Fraction of the budget, at its end, in which the rate falls."""
    final: float = 0.0
    """What is left of the rate at the very end."""

    def __post_init__(self) -> None:
        if self.warmup < 0 or self.warmdown < 0 or self.warmup + self.warmdown > 1:
            raise ValueError(f"a schedule's warmup {self.warmup} and warmdown {self.warmdown} must fit into the budget")

    def scale(self, fraction: float) -> float:
        """Return the factor on every learning rate for a used budget fraction in [0, 1]."""
        if fraction < self.warmup:
            # Half a percent at the very first step: a step at rate 0 would waste its tokens.
            return max(fraction / self.warmup, 0.005)
        left = 1 - fraction
        if left < self.warmdown:
            return self.final + (1 - self.final) * max(left, 0.0) / self.warmdown
        return 1.0


@dataclass(frozen=True)
class Recipe:
    """How an architecture is optimized: declared beside it, free to change, shown on the run's page."""

    groups: tuple[ParameterGroup, ...]
    schedule: Schedule = Schedule()
