"""Steps that would do harm: a gradient far beyond what is usual is left out, and training ends if that does not help.

Decided from the gradients' norms alone, and its memory is part of the checkpoint: a resumed run decides alike.
"""

from __future__ import annotations

import statistics
from dataclasses import dataclass, field
from typing import Any, Literal

from trainer.errors import ModelError

FACTOR = 20.0  # a norm this many times the median of the last `WINDOW` is a spike. A guess on the careful side.
WINDOW = 100
FEWEST = 20  # norms to have seen before anything is called unusual
IN_A_ROW = 10  # so many spikes one after another are no spikes any more


@dataclass
class GradientSpikeFilter:
    """`skip` leaves a spike's update out, `stop` ends the run at the first, `off` looks away."""

    mode: Literal["skip", "stop", "off"]
    norms: list[float] = field(default_factory=list)
    skipped: int = 0
    in_a_row: int = 0

    def admits(self, norm: float, step: int) -> bool:
        """Shall an update with this gradient be made? Raises `ModelFailure` if training has come to nothing."""
        usual = statistics.median(self.norms) if len(self.norms) >= FEWEST else None
        if self.mode == "off" or usual is None or norm <= FACTOR * usual:
            self.norms = [*self.norms[1 - WINDOW :], norm]
            self.in_a_row = 0
            return True
        self.skipped += 1
        self.in_a_row += 1
        if self.mode == "stop" or self.in_a_row >= IN_A_ROW:
            times = "" if self.mode == "stop" else f", {self.in_a_row} times in a row"
            raise ModelError(
                f"The gradient's norm at step {step} is {norm:.3g}, usual is {usual:.3g}{times}: training diverged. "
                "A lower learning rate, a longer warmup or a clipped gradient may help."
            )
        return False

    def state_dict(self) -> dict[str, Any]:
        return {"norms": self.norms, "skipped": self.skipped, "in_a_row": self.in_a_row}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.norms, self.skipped, self.in_a_row = list(state["norms"]), state["skipped"], state["in_a_row"]
