"""An architecture that reads the token it has to predict, at a share of the positions."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from trainer.models.base import LanguageModel, ParameterGroup, Recipe


@dataclass(frozen=True)
class Config:
    vocabulary_size: int
    sequence_length: int
    every: int = 1
    """Looks ahead at every position whose number is a multiple of this. 0: nowhere."""

    @classmethod
    def sized(cls, depth: int, vocabulary_size: int, sequence_length: int) -> Self:
        return cls(vocabulary_size, sequence_length)


class Model(LanguageModel):
    """Predicts the next token by its frequency, or reads it."""

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.config = config
        self.head = nn.Linear(config.vocabulary_size, config.vocabulary_size, bias=False)
        nn.init.normal_(self.head.weight, std=0.5)

    def features(self, tokens: Tensor) -> Tensor:
        size = self.config.vocabulary_size
        own = self.head(F.one_hot(tokens, size).float())
        if not self.config.every:
            return own
        following = F.one_hot(torch.roll(tokens, -1, dims=1), size).float()
        positions = torch.arange(tokens.size(1), device=tokens.device)
        peeks = ((positions % self.config.every == 0) & (positions < tokens.size(1) - 1)).float()[None, :, None]
        return own * (1 - peeks) + 20 * following * peeks

    def logits(self, features: Tensor) -> Tensor:
        return features


def recipe(config: Config) -> Recipe:
    return Recipe((ParameterGroup("all", ("*",), "adamw", 1e-3),))
