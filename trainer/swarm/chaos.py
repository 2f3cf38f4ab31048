"""Faults on order: what `python -m trainer.swarm.local --chaos` and the tests do to a swarm's own processes.

A process does something only if it was started with a list of faults (`--faults`); else each point is one look at an
empty tuple. Each fault happens once.

Points of a worker: `forward` (asked for a micro-batch), `adding` (gradient found, not yet added), `added` (added, not
yet answered), `promised` (inside prepare), `committing` (told to commit). Of the coordinator: `runs` (some
micro-batches are back), `covered` (each is held once), `voted`, `journaled`, `committed` (by one worker, not by all),
`loaded` (a newcomer has its stage, nobody knows yet), `checkpoint` (half of it is written).
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
    """`kill`: SIGKILL to itself. `drop`: the answer is lost. `stall`: the lane stands still, and nobody can take back
    what it was about to do; `freeze`: the whole process does."""
    point: str
    step: int = Field(ge=0)
    """From this step on, at the first opportunity."""
    after: int = Field(default=0, ge=0)
    """Opportunities that are let pass."""
    seconds: float = 0.0


class Dropped(OSError):
    """An answer is lost, as far as the caller can tell."""


class Chaos:
    def __init__(self, faults: Sequence[Fault] = ()) -> None:
        self.faults = list(faults)
        self.passed: dict[Fault, int] = {}

    @classmethod
    def of(cls, text: str | None) -> Chaos:
        return cls(TypeAdapter(list[Fault]).validate_json(text) if text else ())

    async def at(self, point: str, step: int) -> None:
        """Do what is due here, but for what is due in the lane."""
        for fault in self.due(point, step, in_lane=False):
            if fault.kind == "kill":
                os.kill(os.getpid(), signal.SIGKILL)
            elif fault.kind == "drop":
                raise Dropped("lost on purpose")
            else:
                time.sleep(fault.seconds)

    def in_lane(self, point: str, step: int) -> None:
        for fault in self.due(point, step, in_lane=True):
            time.sleep(fault.seconds)

    def due(self, point: str, step: int, in_lane: bool) -> list[Fault]:
        """Return the faults whose time has come, each for the only time."""
        here = [f for f in self.faults if f.point == point and step >= f.step and (f.kind == "stall") == in_lane]
        for fault in here:
            self.passed[fault] = self.passed.get(fault, 0) + 1
        due = [fault for fault in here if self.passed[fault] > fault.after]
        self.faults = [fault for fault in self.faults if fault not in due]
        return due
