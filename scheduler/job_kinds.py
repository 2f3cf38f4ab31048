"""Job kinds: handlers of what a job is for, which the queue does not know.

`settings.JOB_KINDS = {kind: dotted path of a JobKind}`. The leaderboard has those of training and scoring.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any

from django.conf import settings
from django.utils.module_loading import import_string

from scheduler.models import Blob, Checkpoint, Job, Lease
from trainer import protocol


@dataclass(frozen=True)
class JobSummary:
    """A job's purpose and outcome, for the sponsor whose node ran it."""

    title: str
    url: str = ""
    """URL of its page; empty if it has none."""
    outcome: str = ""
    """For example "1.0412 bits per byte, scored"."""


class JobKind:
    """Base class of the kinds. Hooks run inside the transaction that changes the job, and must be fast."""

    @classmethod
    def for_job(cls, job: Job) -> JobKind:
        """Return the handler of a job of this kind."""
        return cls()

    def build_order(self, job: Job, resume: protocol.Checkpoint | None) -> protocol.Order:
        """Return what the node has to do. `resume`: the job's last checkpoint."""
        raise NotImplementedError

    def find_read_checkpoint(self, job: Job) -> Checkpoint | None:
        """Return the checkpoint of another job that this one reads. If it is unusable, this job fails."""
        return None

    def find_result_problem(self, job: Job, result: dict[str, Any]) -> str:
        """Return what the result of a node that says it is done lacks; empty if it is complete."""
        return ""

    def get_reported_step(self, job: Job) -> int:
        """Return the newest step that the metrics of the job have reported."""
        return 0

    def get_last_step(self, job: Job) -> int | None:
        """Return a step that the job cannot reach by its plan; None if that is unknown."""
        return None

    def handle_lease(self, job: Job, lease: Lease) -> None:
        """A node has claimed the job."""

    def handle_metrics(self, job: Job, rows: Sequence[dict[str, Any]]) -> None:
        """Lines of `metrics.jsonl` have arrived. After a resume a step may arrive again, with the same values."""

    def handle_checkpoint(self, job: Job, checkpoint: Checkpoint) -> None:
        """A checkpoint has been uploaded."""

    def handle_milestone(self, job: Job, milestone: protocol.Checkpoint, blobs: Sequence[Blob]) -> None:
        """Weights at a percentage of the budget have been uploaded; after a resume perhaps again. The handler keeps
        them."""

    def handle_requeue(self, job: Job, reason: str) -> None:
        """The lease was lost or handed back; the job waits for another node."""

    def handle_done(self, job: Job, result: dict[str, Any]) -> None:
        """The job is finished."""

    def handle_failure(self, job: Job, cause: protocol.Cause, reason: str) -> None:
        """The job has failed for good."""

    def handle_cancellation(self, job: Job, reason: str) -> None:
        """The job was cancelled."""

    def describe_jobs(self, jobs: Sequence[Job]) -> Mapping[int, JobSummary]:
        """Return summaries of jobs of this kind, by job id, with a fixed number of queries."""
        return {}

    def estimate_seconds_left(self, jobs: Sequence[Job]) -> Mapping[int, float]:
        """Return the seconds that running jobs of this kind still need, by job id, where their progress is known."""
        return {}


def get_job_kind(job: Job) -> JobKind:
    """Return the handler of a job's kind."""
    return import_string(settings.JOB_KINDS[job.kind]).for_job(job)  # type: ignore[no-any-return]


def summarize_jobs(jobs: Iterable[Job]) -> dict[int, JobSummary]:
    """Return summaries by job id. A job of a kind that is no longer configured is summarized by its name."""
    found: dict[int, JobSummary] = {}
    for name, alike in group_by_kind(jobs):
        known = get_job_kind(alike[0]).describe_jobs(alike) if name in settings.JOB_KINDS else {}
        found |= {job.pk: known.get(job.pk) or JobSummary(f"{name} job {job.pk}") for job in alike}
    return found


def estimate_seconds_left(jobs: Iterable[Job]) -> dict[int, float]:
    """Return the seconds that running jobs still need, by job id, where their kinds know it."""
    found: dict[int, float] = {}
    for name, alike in group_by_kind(jobs):
        if name in settings.JOB_KINDS:
            found |= get_job_kind(alike[0]).estimate_seconds_left(alike)
    return found


def group_by_kind(jobs: Iterable[Job]) -> Iterator[tuple[str, list[Job]]]:
    for name, group in groupby(sorted(jobs, key=lambda job: job.kind), key=lambda job: job.kind):
        yield name, list(group)


@dataclass(frozen=True)
class PoolTrack:
    """A track, as far as the pool knows it."""

    name: str
    needs_labels: tuple[str, ...] = ()


def list_tracks() -> dict[str, PoolTrack]:
    """Return the tracks by the values of `Job.track`. A node can be lent to one of them alone."""
    return import_string(settings.POOL_TRACKS)()  # type: ignore[no-any-return]
