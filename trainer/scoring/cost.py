"""What a model costs to train, as the scorer has it.

The count is made by our code, but in the process of the model, whose author could forge it there. So it is bounded by
what the scorer knows itself, and its result must be plausible against metered time (`trainer.accounting.plausibility`).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Self

from trainer.accounting.plausibility import IMPOSSIBLE, VOID_REASONS


@dataclass(frozen=True)
class TrainingCost:
    """FLOPs and sizes."""

    flops_per_token: float | None
    """Forward and backward; None where the count is void."""
    void: str
    """Why: one of `trainer.accounting.plausibility.VOID_REASONS`."""
    embedding: int
    """Numbers in tables that are looked up."""
    non_embedding: int

    @classmethod
    def read(cls, flops: float, total: int, embedding: int, code: int, stored: int) -> Self:
        """Judge what came through the door; `stored`: numbers in the checkpoint, counted by the scorer."""
        embedding = min(embedding, stored)
        void = VOID_REASONS[code] if code < len(VOID_REASONS) else IMPOSSIBLE
        if not void and not (math.isfinite(flops) and flops > 0):
            void = IMPOSSIBLE
        return cls(None if void else flops, void, embedding, stored - embedding)
