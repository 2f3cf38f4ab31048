"""An architecture that fails in the way that `WAY` names, which a test sets."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self

import torch
import torch.nn.functional as functional
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
        if WAY in ("type", "random type"):
            table = torch.rand(4, dtype=torch.complex128)
            self.register_buffer("table", table, persistent=WAY == "type")
        self.embedding = nn.Embedding(config.vocabulary_size, config.width)
        self.head = nn.Linear(config.width, config.vocabulary_size + (WAY == "shape"), bias=False)
        self.steps = 0

    def features(self, tokens: Tensor) -> Tensor:
        if WAY != "random type" and torch.is_grad_enabled() and len(tokens) > 1:  # FLOPs are counted on one row
            self.steps += 1
        if WAY == "memory" and self.steps == 4:
            torch.empty(2**50)
        if WAY == "counting" and int(tokens.max()) > 9:
            self.steps += 1
        dropped = 0.5 if WAY == "dropout" else 0.0
        return functional.dropout(self.embedding(tokens), dropped, self.training)

    def logits(self, features: Tensor) -> Tensor:
        if WAY == "forward" and self.steps == 4:
            raise RuntimeError("the tensors do not fit")
        logits = self.head(features)
        return logits * float("nan") if WAY == "nan" and self.steps == 4 else logits


def recipe(config: Config) -> Recipe:
    match = "embedding.*" if WAY == "recipe" else "*"
    return Recipe((ParameterGroup("all", (match,), "adamw", learning_rate=1e-3),))
