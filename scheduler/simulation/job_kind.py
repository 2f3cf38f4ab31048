"""The simulation's own kind of job: there is nothing to compute, only time to spend."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from scheduler.job_kinds import JobSummary
from scheduler.models import Checkpoint, Job, Lease
from trainer import protocol

PIN = protocol.DatasetPin(corpus="simulated", tokenizer="bpe:256", hash="0" * 64)


class SimulatedJobKind:
    def order(self, job: Job, resume: protocol.Checkpoint | None) -> protocol.Order:
        return protocol.TrainOrder(dataset=PIN, config={}, resume=resume)

    def about(self, jobs: Sequence[Job]) -> Mapping[int, JobSummary]:
        return {}

    def leased(self, job: Job, lease: Lease) -> None: ...
    def metrics(self, job: Job, rows: Sequence[dict[str, Any]]) -> None: ...
    def checkpoint(self, job: Job, checkpoint: Checkpoint) -> None: ...
    def requeued(self, job: Job, reason: str) -> None: ...
    def done(self, job: Job, result: dict[str, Any]) -> None: ...
    def failed(self, job: Job, cause: protocol.Cause, reason: str) -> None: ...
    def cancelled(self, job: Job, reason: str) -> None: ...
