"""Gradient spikes: skip an update whose gradient norm is far above the median, and stop if spikes do not end.

Norms are those after clipping, if the recipe clips.

The state is part of the checkpoint, so a resumed run takes the same decisions.
"""

from __future__ import annotations

import math
import statistics
from dataclasses import dataclass, field
from typing import Any, Literal

from trainer.errors import DivergenceError

SPIKE_FACTOR = 20.0  # a norm this many times the median of the last `WINDOW` is a spike; a cautious guess
WINDOW = 100
MIN_NORMS = 20  # before a norm can be a spike
MAX_IN_A_ROW = 10  # this many consecutive spikes end the run


@dataclass
class GradientSpikeFilter:
    """`skip` skips the update of a spike, `stop` ends the run at the first spike, `off` does nothing."""

    mode: Literal["skip", "stop", "off"]
    norms: list[float] = field(default_factory=list)
    skipped: int = 0
    in_a_row: int = 0

    @property
    def limit(self) -> float:
        """The largest norm of the next gradient that is no spike."""
        if self.mode == "off" or len(self.norms) < MIN_NORMS:
            return math.inf
        return SPIKE_FACTOR * statistics.median(self.norms)

    def accept(self, norm: float, step: int) -> bool:
        """Return whether to make the update of a gradient with this norm. Raise `DivergenceError` to end the run."""
        if norm <= self.limit:
            self.norms = [*self.norms[1 - WINDOW :], norm]
            self.in_a_row = 0
            return True
        self.skipped += 1
        self.in_a_row += 1
        if self.mode == "stop" or self.in_a_row >= MAX_IN_A_ROW:
            times = "" if self.mode == "stop" else f", {self.in_a_row} times in a row"
            raise DivergenceError(
                f"The gradient's norm at step {step} is {norm:.3g}, the median {self.limit / SPIKE_FACTOR:.3g}{times}: "
                "training diverged. "
                "A lower learning rate, a longer warmup or a clipped gradient may help."
            )
        return False

    def state_dict(self) -> dict[str, Any]:
        return {"norms": self.norms, "skipped": self.skipped, "in_a_row": self.in_a_row}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.norms, self.skipped, self.in_a_row = list(state["norms"]), state["skipped"], state["in_a_row"]
