"""The simulation's own kind of job: there is nothing to compute, only time to spend."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from scheduler.kinds import About
from scheduler.models import Checkpoint, Job, Lease
from trainer import wire

PIN = wire.DatasetPin(corpus="simulated", tokenizer="bpe:256", hash="0" * 64)


class Simulated:
    def order(self, job: Job, resume: wire.Checkpoint | None) -> wire.Order:
        return wire.TrainOrder(dataset=PIN, config={}, resume=resume)

    def about(self, jobs: Sequence[Job]) -> Mapping[int, About]:
        return {}

    def leased(self, job: Job, lease: Lease) -> None: ...
    def metrics(self, job: Job, rows: Sequence[dict[str, Any]]) -> None: ...
    def checkpoint(self, job: Job, checkpoint: Checkpoint) -> None: ...
    def requeued(self, job: Job, reason: str) -> None: ...
    def done(self, job: Job, result: dict[str, Any]) -> None: ...
    def failed(self, job: Job, cause: wire.Cause, reason: str) -> None: ...
    def cancelled(self, job: Job, reason: str) -> None: ...
