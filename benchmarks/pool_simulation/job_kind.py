"""The job kind of the simulation: its jobs compute nothing."""

from __future__ import annotations

from scheduler.job_kinds import JobKind
from scheduler.models import Job
from trainer import protocol

PIN = protocol.DatasetPin(corpus="simulated", tokenizer="bpe:256", hash="0" * 64)


class SimulatedJobKind(JobKind):
    def build_order(self, job: Job, resume: protocol.Checkpoint | None) -> protocol.Order:
        return protocol.TrainOrder(dataset=PIN, config={}, resume=resume)
