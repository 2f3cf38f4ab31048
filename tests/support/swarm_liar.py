"""A worker that joins as any other and, from some step on, lies: a process of its own, for tests of trust.

What it does is the point of a fault that never happens otherwise: `Fault(kind="drop", point="lie:nan", step=3)`.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from trainer.swarm import wire, worker
from trainer.swarm.frames import Frame
from trainer.swarm.stage import Passage

GRADIENTS: dict[str, Callable[[Tensor], Tensor]] = {
    "nan": lambda found: found * float("nan"),
    "shape": lambda found: found[:, :-1],
    "huge": lambda found: found * 1e6,
    "turned": lambda found: -found,
}
"""What happens to the gradient that it answers with."""
SUMS: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "huge sum": lambda found, before: found * 1e6,
    "stale sum": lambda found, before: before[: len(found)],
    "turned sum": lambda found, before: -found,
}
"""What happens to its sum, which its own vote is made of, too."""


class Liar(worker.Worker):
    old: Tensor | None = None

    def lie(self, step: int) -> str:
        due = [fault for fault in self.chaos.faults if fault.point.startswith("lie:") and step >= fault.step]
        return due[0].point.removeprefix("lie:") if due else ""

    async def way_back(self, ask: wire.Run, passage: Passage, gradient: Tensor | None, ran: wire.Ran) -> Frame:
        answer = await super().way_back(ask, passage, gradient, ran)
        change = GRADIENTS.get(self.lie(ask.step))
        return Frame(answer.body, tuple(map(change, answer.tensors))) if change else answer

    async def through_the_next(self, ask: wire.Run, passage: Passage, targets: Tensor | None) -> Frame:
        if self.lie(ask.step) == "hidden":
            passage.output = passage.output * float("nan")
        return await super().through_the_next(ask, passage, targets)

    def own_part(self, which: str, part: wire.Part) -> Tensor:
        found = super().own_part(which, part)
        change = SUMS.get(self.lie(part.step))
        before = self.old if self.old is not None else torch.zeros_like(found)
        if change is None:
            self.old = found.clone()
        return change(found, before) if change else found


def main(argv: Sequence[str] | None = None) -> int:
    changed: Any = worker
    changed.Worker = Liar
    return worker.main(argv)


if __name__ == "__main__":
    sys.exit(main())
