"""Optimizers, parameter groups, adapters. A configuration loads the settings of adapters without torch."""

from __future__ import annotations

import math
from dataclasses import dataclass

from trainer.errors import UserError


@dataclass(frozen=True)
class LoraArgs:
    """Train adapters instead of all weights, see `trainer.optim.lora`."""

    rank: int = 0
    """Rows of each adapter's smaller matrix; 0 trains all weights. 8 is usual."""
    alpha: float = 16.0
    """An adapter's product is scaled by alpha / rank."""
    targets: str = ""
    """Which matrices: shell patterns over their names, commas between them. Computed: all but embedding and head."""
    vectors: bool = False
    """Whether vectors are trained, too: norms, gains, biases."""

    def __post_init__(self) -> None:
        if self.rank < 0 or not 0 < self.alpha < math.inf:
            raise UserError(f"lora.rank cannot be {self.rank}, nor lora.alpha {self.alpha}")
        if not self.rank and (self.targets or self.vectors):
            raise UserError("lora.targets and lora.vectors need a lora.rank")
