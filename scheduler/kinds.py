"""What the queue asks of a kind of job. It leases jobs without knowing what they are for.

`settings.JOB_KINDS = {kind: dotted path of a Kind}`: the owner of the purpose (the leaderboard, for training and
scoring) brings the handler.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

from django.conf import settings
from django.utils.module_loading import import_string

from scheduler.models import Checkpoint, Job, Lease
from trainer import wire


class Kind(Protocol):
    """Every method is called inside the transaction that changes the job, and may start nothing slower than a row."""

    def order(self, job: Job, resume: wire.Checkpoint | None) -> wire.Order:
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

    def failed(self, job: Job, cause: wire.Cause, reason: str) -> None:
        """The job has failed for good."""

    def cancelled(self, job: Job, reason: str) -> None:
        """The job was cancelled."""


def kind_of(job: Job) -> Kind:
    """Return the handler of a job's kind."""
    return import_string(settings.JOB_KINDS[job.kind])()  # type: ignore[no-any-return]
