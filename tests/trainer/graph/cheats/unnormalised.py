"""Hands out probabilities that add up to far more than one. The scorer normalises: it gains nothing."""

from __future__ import annotations

import honest
from honest import Config, recipe
from torch import Tensor

__all__ = ["Config", "Model", "recipe"]


class Model(honest.Model):
    def forward(self, tokens: Tensor) -> Tensor:
        return super().forward(tokens) + 50.0
