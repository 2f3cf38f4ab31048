"""Architectures that go wrong in one way each; `WAY` says which, and a test sets it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self

import torch
from torch import Tensor, nn

from trainer.models.base import LanguageModel, ParameterGroup, Recipe

WAY = "none"


@dataclass(frozen=True)
class Config:
    vocabulary_size: int
    sequence_length: int
    width: int = 8
    heads: int = 1

    @classmethod
    def sized(cls, depth: int, vocabulary_size: int, sequence_length: int) -> Self:
        return cls(vocabulary_size, sequence_length)


class Model(LanguageModel):
    def __init__(self, config: Config) -> None:
        super().__init__()
        if WAY == "building":
            raise KeyError("width")
        self.embedding = nn.Embedding(config.vocabulary_size, config.width)
        self.head = nn.Linear(config.width, config.vocabulary_size + (WAY == "shape"), bias=False)
        self.calls = 0  # with a gradient: the first counts FLOPs, the others are training steps

    def features(self, tokens: Tensor) -> Tensor:
        return self.embedding(tokens)

    def logits(self, features: Tensor) -> Tensor:
        if self.training and torch.is_grad_enabled():
            self.calls += 1
        if WAY == "forward" and self.calls == 5:
            raise RuntimeError("the tensors do not fit")
        logits = self.head(features)
        return logits * float("nan") if WAY == "nan" and self.calls == 5 else logits


def recipe(config: Config) -> Recipe:
    match = "embedding.*" if WAY == "recipe" else "*"
    return Recipe((ParameterGroup("all", (match,), "adamw", learning_rate=1e-3),))
