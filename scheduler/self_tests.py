"""The self-test of a slot: a short job that only this slot gets, before all others (`scheduler.node_health`)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from django.db import IntegrityError, transaction

from scheduler import leases, storage, transitions
from scheduler.job_kinds import JobKind, JobSummary
from scheduler.matching import SELF_TEST_KIND
from scheduler.models import SITE_ACTOR, Blob, Job, Node
from scheduler.node_health import hash_release
from trainer import protocol

LIMITS = protocol.JobLimits(wall_seconds=900, memory_bytes=8 * 10**9, disk_bytes=10**9, processes=1024)
"""It takes seconds; a machine that is busy may be twenty times slower."""


def lease_self_test(node: Node, slot: int) -> protocol.Lease | None:
    """Lease a self-test to the slot; return None if the slot has a lease already.

    The job is created as leased and has one attempt, so no other node ever gets it.
    """
    release = Blob.objects.filter(sha256=hash_release()).first() or storage.store_release()
    try:
        with transaction.atomic():
            job = Job.objects.create(
                kind=SELF_TEST_KIND,
                state=Job.State.LEASED,
                priority=Job.Priority.SCORE,
                expected_seconds=30,
                release=release,
                limits=LIMITS.model_dump(),
                needs_sandbox=False,
                attempts=1,
                max_attempts=1,
            )
            return leases.create_lease(job, node, slot)
    except IntegrityError:
        return None


class SelfTestHandler(JobKind):
    """Handles jobs of kind `self_test` (`settings.JOB_KINDS`)."""

    def build_order(self, job: Job, resume: protocol.Checkpoint | None) -> protocol.SelfTestOrder:
        return protocol.SelfTestOrder()

    def handle_requeue(self, job: Job, reason: str) -> None:
        transitions.cancel_job(job, SITE_ACTOR, "The slot gets another self-test when it asks for work again.")

    def describe_jobs(self, jobs: Sequence[Job]) -> Mapping[int, JobSummary]:
        outcomes = {Job.State.DONE: "passed", Job.State.FAILED: "failed", Job.State.CANCELLED: "interrupted"}
        return {job.pk: JobSummary("Self-test", outcome=outcomes.get(Job.State(job.state), "")) for job in jobs}
