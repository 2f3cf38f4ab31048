"""Settings of a site whose jobs need no torch, and their kind: each is so many steps of a small script."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from dailytrain.settings import *  # noqa: F403
from dailytrain.settings import HOME

if TYPE_CHECKING:
    from scheduler.job_kinds import JobSummary
    from scheduler.models import Checkpoint, Job, Lease
    from trainer import protocol

JOB_KINDS = {"train": "tests.support.chaos_settings.Steps"}
STEPS = HOME / "steps"
"""What the jobs said, a file for each."""


class Steps:
    """Notes every step that a node has told of."""

    def order(self, job: Job, resume: protocol.Checkpoint | None) -> protocol.Order:
        from trainer import protocol

        pin = protocol.DatasetPin(corpus="python-library", tokenizer="bpe:256", hash="e" * 64)
        return protocol.TrainOrder(dataset=pin, config=job.result, resume=resume)

    def about(self, jobs: Sequence[Job]) -> Mapping[int, JobSummary]:
        return {}

    def metrics(self, job: Job, rows: Sequence[dict[str, Any]]) -> None:
        STEPS.mkdir(exist_ok=True)
        with (STEPS / str(job.pk)).open("a") as file:
            file.writelines(json.dumps(row["step"]) + "\n" for row in rows)

    def leased(self, job: Job, lease: Lease) -> None: ...
    def checkpoint(self, job: Job, checkpoint: Checkpoint) -> None: ...
    def requeued(self, job: Job, reason: str) -> None: ...
    def done(self, job: Job, result: dict[str, Any]) -> None: ...
    def failed(self, job: Job, cause: protocol.Cause, reason: str) -> None: ...
    def cancelled(self, job: Job, reason: str) -> None: ...
