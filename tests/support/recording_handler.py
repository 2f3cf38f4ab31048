"""A job kind that records the calls of its handler, so that tests of the scheduler need no leaderboard."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from scheduler.job_kinds import JobKind, JobSummary
from scheduler.models import Checkpoint, Job, Lease
from trainer import protocol

PIN = protocol.DatasetPin(corpus="python-docs", tokenizer="bpe:512", hash="0" * 64)
CALLS: list[tuple[str, Any]] = []


class Recorder(JobKind):
    def build_order(self, job: Job, resume: protocol.Checkpoint | None) -> protocol.TrainOrder:
        if job.author == "nobody":
            raise LookupError("this job's run is gone")
        return protocol.TrainOrder(dataset=PIN, config={"arch": "gpt", **job.result}, resume=resume)

    def handle_lease(self, job: Job, lease: Lease) -> None:
        CALLS.append(("leased", lease.pk))

    def handle_metrics(self, job: Job, rows: Sequence[dict[str, Any]]) -> None:
        CALLS.append(("metrics", list(rows)))

    def handle_checkpoint(self, job: Job, checkpoint: Checkpoint) -> None:
        CALLS.append(("checkpoint", checkpoint.step))

    def handle_requeue(self, job: Job, reason: str) -> None:
        CALLS.append(("requeued", reason))

    def handle_done(self, job: Job, result: dict[str, Any]) -> None:
        CALLS.append(("done", result))

    def handle_failure(self, job: Job, cause: protocol.Cause, reason: str) -> None:
        CALLS.append(("failed", (cause, reason)))

    def handle_cancellation(self, job: Job, reason: str) -> None:
        CALLS.append(("cancelled", reason))

    def describe_jobs(self, jobs: Sequence[Job]) -> dict[int, JobSummary]:
        return {job.pk: JobSummary(f"Idea {job.pk}", f"/runs/{job.pk}/", "1.5000 bits per byte") for job in jobs}
