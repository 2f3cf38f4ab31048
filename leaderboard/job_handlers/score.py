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
    def order(self, job: Job, resume: protocol.Checkpoint | None) -> protocol.Order:
        return get_handler(job).order(job, resume)

    def leased(self, job: Job, lease: Lease) -> None:
        get_handler(job).leased(job, lease)

    def metrics(self, job: Job, rows: Sequence[dict[str, Any]]) -> None:
        get_handler(job).metrics(job, rows)

    def checkpoint(self, job: Job, checkpoint: Checkpoint) -> None:
        get_handler(job).checkpoint(job, checkpoint)

    def requeued(self, job: Job, reason: str) -> None:
        get_handler(job).requeued(job, reason)

    def done(self, job: Job, result: dict[str, Any]) -> None:
        get_handler(job).done(job, result)

    def failed(self, job: Job, cause: protocol.Cause, reason: str) -> None:
        get_handler(job).failed(job, cause, reason)

    def cancelled(self, job: Job, reason: str) -> None:
        get_handler(job).cancelled(job, reason)

    def about(self, jobs: Sequence[Job]) -> dict[int, JobSummary]:
        return {**RunScoreHandler().about(jobs), **ReleaseScoreHandler().about(jobs)}
