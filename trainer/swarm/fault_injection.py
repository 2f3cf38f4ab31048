"""Fault injection for `dailytrain swarm local --chaos` and the tests.

A process injects faults only if it was started with a list of them (`--faults`). Each fault happens once.

Points of a worker: `forward` (received a micro-batch), `adding` (gradient computed, not yet accumulated), `added`
(accumulated, not yet answered), `frozen` (inside prepare), `committing` (received a commit). Of the coordinator:
`runs` (some micro-batches are back), `covered` (each is held once), `voted`, `journaled`, `committed` (by one worker,
not by all), `loaded` (a new worker has its stage, which is not yet recorded), `checkpoint` (half of it is written).
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Sequence
from typing import Literal

from pydantic import Field, TypeAdapter

from trainer.protocol import Message


class Fault(Message):
    kind: Literal["kill", "drop", "stall", "freeze"]
    """`kill`: SIGKILL to itself. `drop`: the reply is lost. `stall`: the compute thread sleeps, and its next action
    can no longer be canceled. `freeze`: the whole process sleeps."""
    point: str
    step: int = Field(ge=0)  # The fault is due at the first opportunity from this step on
    after: int = Field(default=0, ge=0)  # Opportunities to skip
    seconds: float = 0.0


class DroppedAnswerError(OSError):
    """A reply is lost on purpose."""


class FaultInjector:
    def __init__(self, faults: Sequence[Fault] = ()) -> None:
        self.faults = list(faults)
        self.opportunities: dict[Fault, int] = {}

    @classmethod
    def from_json(cls, text: str | None) -> FaultInjector:
        return cls(TypeAdapter(list[Fault]).validate_json(text) if text else ())

    async def trigger(self, point: str, step: int) -> None:
        """Inject the faults that are due at this point, except stalls of the compute thread."""
        for fault in self.take_due_faults(point, step, is_stall=False):
            if fault.kind == "kill":
                os.kill(os.getpid(), signal.SIGKILL)
            elif fault.kind == "drop":
                raise DroppedAnswerError("dropped on purpose")
            else:
                time.sleep(fault.seconds)

    def trigger_stall(self, point: str, step: int) -> None:
        """Inject the stalls that are due at this point. Call it in the compute thread."""
        for fault in self.take_due_faults(point, step, is_stall=True):
            time.sleep(fault.seconds)

    def take_due_faults(self, point: str, step: int, is_stall: bool) -> list[Fault]:
        """Remove the faults that are due from the list and return them."""
        matching = [f for f in self.faults if f.point == point and step >= f.step and (f.kind == "stall") == is_stall]
        for fault in matching:
            self.opportunities[fault] = self.opportunities.get(fault, 0) + 1
        due = [fault for fault in matching if self.opportunities[fault] > fault.after]
        self.faults = [fault for fault in self.faults if fault not in due]
        return due
