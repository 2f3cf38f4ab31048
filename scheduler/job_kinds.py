"""What the queue asks of a kind of job. It leases jobs without knowing what they are for.

`settings.JOB_KINDS = {kind: dotted path of a Kind}`: the owner of the purpose (the leaderboard, for training and
scoring) brings the handler.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any, Protocol

from django.conf import settings
from django.utils.module_loading import import_string

from scheduler.models import Checkpoint, Job, Lease
from trainer import protocol


@dataclass(frozen=True)
class JobSummary:
    """What a job was for and what came of it, for the sponsor whose node did it."""

    title: str
    url: str = ""
    """Of its page; empty where it has none."""
    outcome: str = ""
    """Few words: "1.0412 bits per byte, scored"."""


class JobKind(Protocol):
    """Every method is called inside the transaction that changes the job, and may start nothing slower than a row."""

    def order(self, job: Job, resume: protocol.Checkpoint | None) -> protocol.Order:
        """Return what the node is asked to do; `resume` is the job's last checkpoint."""

    def leased(self, job: Job, lease: Lease) -> None:
        """A node has taken the job."""

    def metrics(self, job: Job, rows: Sequence[dict[str, Any]]) -> None:
        """Lines of `metrics.jsonl` have come; a step may come again after a resume, with the same values."""

    def checkpoint(self, job: Job, checkpoint: Checkpoint) -> None:
        """A checkpoint has been uploaded."""

    def requeued(self, job: Job, reason: str) -> None:
        """The lease was lost or handed back; the job waits for another node."""

    def done(self, job: Job, result: dict[str, Any]) -> None:
        """The job is finished."""

    def failed(self, job: Job, cause: protocol.Cause, reason: str) -> None:
        """The job has failed for good."""

    def cancelled(self, job: Job, reason: str) -> None:
        """The job was cancelled."""

    def about(self, jobs: Sequence[Job]) -> Mapping[int, JobSummary]:
        """Return, by job id, what these jobs of this kind were for. For pages: as few queries for many as for one."""


def get_job_kind(job: Job) -> JobKind:
    """Return the handler of a job's kind."""
    return import_string(settings.JOB_KINDS[job.kind])()  # type: ignore[no-any-return]


def summarize_jobs(jobs: Iterable[Job]) -> dict[int, JobSummary]:
    """Return, by job id, what the jobs were for. A kind that is no longer configured leaves its name."""
    found: dict[int, JobSummary] = {}
    for name, group in groupby(sorted(jobs, key=lambda job: job.kind), key=lambda job: job.kind):
        alike = list(group)
        known = get_job_kind(alike[0]).about(alike) if name in settings.JOB_KINDS else {}
        found |= {job.pk: known.get(job.pk) or JobSummary(f"{name} job {job.pk}") for job in alike}
    return found


def list_tracks() -> dict[str, str]:
    """Return the words that `Job.track` can be, each with its name: what a node can be lent to alone."""
    return import_string(settings.POOL_TRACKS)()  # type: ignore[no-any-return]
