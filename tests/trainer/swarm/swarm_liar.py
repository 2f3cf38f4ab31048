"""A worker that joins like any other and, from some step on, sends wrong results: a process for tests of trust.

Its kind of lie is the point of a fault that never triggers: `Fault(kind="drop", point="lie:nan", step=3)`.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from trainer.swarm import messages, worker_main
from trainer.swarm.frames import RpcFrame
from trainer.swarm.next_stage_client import NextStageClient, StageQuery
from trainer.swarm.stage import ForwardRecord
from trainer.swarm.sum_exchange import SumExchange
from trainer.swarm.worker import Worker

GRADIENT_LIES: dict[str, Callable[[Tensor], Tensor]] = {
    "nan": lambda gradient: gradient * float("nan"),
    "shape": lambda gradient: gradient[:, :-1],
    "huge": lambda gradient: gradient * 1e6,
    "turned": lambda gradient: -gradient,
}
"""Changes of the gradient in its reply."""
SUM_LIES: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "huge sum": lambda part, before: part * 1e6,
    "stale sum": lambda part, before: before[: len(part)],
    "turned sum": lambda part, before: -part,
}
"""Changes of its gradient sum, which its vote uses, too."""


class LyingSumExchange(SumExchange):
    last_part: Tensor | None = None
    get_lie: Callable[[int], str]

    def get_own_part(self, part: messages.SumPart) -> Tensor:
        tensor = super().get_own_part(part)
        change = SUM_LIES.get(self.get_lie(part.step))
        before = self.last_part if self.last_part is not None else torch.zeros_like(tensor)
        if change is None:
            self.last_part = tensor.clone()
        return change(tensor, before) if change else tensor


class LyingNextStageClient(NextStageClient):
    get_lie: Callable[[int], str]

    def build_query(self, request: messages.RunRequest, record: ForwardRecord, targets: Tensor | None) -> StageQuery:
        query = super().build_query(request, record, targets)
        if self.get_lie(request.step) != "hidden":
            return query
        *inputs, hidden = query.tensors
        return replace(query, tensors=(*inputs, hidden * float("nan")))


class LyingWorker(Worker):
    exchange_type = LyingSumExchange
    next_stage_type = LyingNextStageClient

    def handle_welcome(self, welcome: messages.Welcome) -> float:
        interval = super().handle_welcome(welcome)
        exchange: Any = self.exchange
        exchange.get_lie = self.get_lie
        return interval

    def get_lie(self, step: int) -> str:
        due = [fault for fault in self.faults.faults if fault.point.startswith("lie:") and step >= fault.step]
        return due[0].point.removeprefix("lie:") if due else ""

    async def backward(
        self, request: messages.RunRequest, record: ForwardRecord, gradient: Tensor | None, result: messages.StageReply
    ) -> RpcFrame:
        answer = await super().backward(request, record, gradient, result)
        change = GRADIENT_LIES.get(self.get_lie(request.step))
        return RpcFrame(answer.body, tuple(map(change, answer.tensors))) if change else answer

    async def run_next_stages(
        self, request: messages.RunRequest, record: ForwardRecord, targets: Tensor | None
    ) -> RpcFrame:
        next_stage: Any = self.next_stage
        next_stage.get_lie = self.get_lie
        return await super().run_next_stages(request, record, targets)


def main(argv: Sequence[str] | None = None) -> int:
    return worker_main.main(argv, LyingWorker)


if __name__ == "__main__":
    sys.exit(main())
