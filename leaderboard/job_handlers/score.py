"""Jobs of kind `score`: a finished run's, or a release's. To a node they are the same."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from leaderboard.job_handlers.release_scores import ReleaseScoreHandler
from leaderboard.job_handlers.train import RunScoreHandler
from leaderboard.models import Publication
from scheduler.job_kinds import JobKind, JobSummary
from scheduler.models import Checkpoint, Job, Lease
from trainer import protocol


def get_handler(job: Job) -> JobKind:
    return ReleaseScoreHandler() if Publication.objects.filter(score_job=job).exists() else RunScoreHandler()


class ScoreHandler(JobKind):
    def build_order(self, job: Job, resume: protocol.Checkpoint | None) -> protocol.Order:
        return get_handler(job).build_order(job, resume)

    def handle_lease(self, job: Job, lease: Lease) -> None:
        get_handler(job).handle_lease(job, lease)

    def handle_metrics(self, job: Job, rows: Sequence[dict[str, Any]]) -> None:
        get_handler(job).handle_metrics(job, rows)

    def handle_checkpoint(self, job: Job, checkpoint: Checkpoint) -> None:
        get_handler(job).handle_checkpoint(job, checkpoint)

    def handle_requeue(self, job: Job, reason: str) -> None:
        get_handler(job).handle_requeue(job, reason)

    def handle_done(self, job: Job, result: dict[str, Any]) -> None:
        get_handler(job).handle_done(job, result)

    def handle_failure(self, job: Job, cause: protocol.Cause, reason: str) -> None:
        get_handler(job).handle_failure(job, cause, reason)

    def handle_cancellation(self, job: Job, reason: str) -> None:
        get_handler(job).handle_cancellation(job, reason)

    def describe_jobs(self, jobs: Sequence[Job]) -> dict[int, JobSummary]:
        return {**RunScoreHandler().describe_jobs(jobs), **ReleaseScoreHandler().describe_jobs(jobs)}
