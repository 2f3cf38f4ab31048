"""The honest architecture that every cheat varies, and the text that all are scored on."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any, Literal, Self

import numpy as np
import torch
from torch import Tensor, nn

from trainer.models.base import LanguageModel, ParameterGroup, Recipe
from trainer.scoring.heldout_text import EncodedDocument

V, T, WIDTH = 64, 32, 16
Verdict = Literal[
    "does not run",
    "does not trace",
    "does not load",
    "no effect",
    "gains",
    "charged",
    "corrected",
    "differs",
    "refused",
    "honest",
]
Files = dict[str, bytes]


@dataclass(frozen=True)
class Config:
    vocabulary_size: int
    sequence_length: int
    width: int = WIDTH

    @classmethod
    def sized(cls, depth: int, vocabulary_size: int, sequence_length: int) -> Self:
        return cls(vocabulary_size, sequence_length)


class Model(LanguageModel):
    """A bag of words over the past."""

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.config = config
        self.embedding = nn.Embedding(config.vocabulary_size, config.width)
        self.mix = nn.Linear(config.width, config.width, bias=False)
        self.head = nn.Linear(config.width, config.vocabulary_size, bias=False)

    def features(self, tokens: Tensor) -> Tensor:
        x = self.embedding(tokens)
        past = x.cumsum(1) / torch.arange(1, tokens.shape[1] + 1, device=x.device)[:, None]
        return torch.tanh(self.mix(x + past))

    def logits(self, features: Tensor) -> Tensor:
        logits: Tensor = self.head(features)
        return logits


def recipe(config: Config) -> Recipe:
    return Recipe((ParameterGroup("all", ("*",), "adamw", learning_rate=1e-3),))


@dataclass(frozen=True)
class Case:
    """An architecture, and the verdict that it should get."""

    name: str
    expected: Verdict
    build: Callable[[], Any]  # returns the architecture's module; runs in the tracing process
    edit: Callable[[Files], Files] | None = None  # changes the files after tracing
    train: Callable[[nn.Module], None] | None = None  # changes the initial weights before the score
    draw: int = 0  # seed of the text that a secret draws; 0: the public text is scored


def vary(**methods: Any) -> SimpleNamespace:
    """Return the honest architecture with other methods; `recipe` replaces the function."""
    made = methods.pop("recipe", recipe)
    return SimpleNamespace(Config=Config, Model=type("Model", (Model,), methods), recipe=made)


def vary_features(change: Callable[[Any, Tensor, Tensor], Tensor]) -> Callable[[], SimpleNamespace]:
    """Return a builder whose features are `change(model, honest features, tokens)`."""

    def features(self: Model, tokens: Tensor) -> Tensor:
        return change(self, Model.features(self, tokens), tokens)

    return lambda: vary(features=features)


def vary_predictions(change: Callable[[Tensor, Tensor], Tensor]) -> Callable[[], SimpleNamespace]:
    """Return a builder whose features are `change(honest logits, tokens)` and whose head is the identity."""

    def features(self: Model, tokens: Tensor) -> Tensor:
        return change(self.head(Model.features(self, tokens)), tokens)

    return lambda: vary(features=features, logits=lambda self, features: features)


def sample_text(documents: int = 30, seed: int = 0) -> list[EncodedDocument]:
    """Return random walks: each token is three times the one before, plus a number below 8. Tokens have one byte."""
    rng = np.random.default_rng(seed)
    texts = []
    for length in rng.integers(20, 2 * T, size=documents):
        tokens = [int(rng.integers(V))]
        while len(tokens) < length:
            tokens.append((3 * tokens[-1] + int(rng.integers(8))) % V)
        texts.append(EncodedDocument(np.array(tokens, np.int64), len(tokens)))
    return texts


def cases_from(table: Mapping[str, Callable[[], Any]], expected: Verdict) -> list[Case]:
    return [Case(name, expected, build) for name, build in table.items()]
