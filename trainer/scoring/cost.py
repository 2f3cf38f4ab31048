"""The training cost of a model, as the scorer reports it.

Our code counts, but in the model's process, where the author could forge the count. So the scorer bounds it by what it
knows itself, and checks the result against metered time (`trainer.accounting.plausibility`).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Self

from trainer.accounting.plausibility import IMPOSSIBLE, VOID_REASONS


@dataclass(frozen=True)
class TrainingCost:
    """FLOPs and parameter counts."""

    flops_per_token: float | None  # forward and backward; None if the count is void
    void: str  # why the count is void: one of `trainer.accounting.plausibility.VOID_REASONS`
    embedding: int  # parameters of lookup tables
    non_embedding: int

    @classmethod
    def from_counts(cls, flops: float, total: int, embedding: int, code: int, *, stored: int) -> Self:
        """Bound what the model's process reported; `stored`: parameters in the checkpoint, counted by the scorer."""
        embedding = min(embedding, stored)
        void = VOID_REASONS[code] if code < len(VOID_REASONS) else IMPOSSIBLE
        if not void and not (math.isfinite(flops) and flops > 0):
            void = IMPOSSIBLE
        return cls(None if void else flops, void, embedding, stored - embedding)
