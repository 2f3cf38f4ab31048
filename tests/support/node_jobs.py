"""What a node does with a job, by the functions behind the node API. Their rows are those of a real node's calls."""

from __future__ import annotations

from typing import Any

from django.db import transaction

from scheduler import leases, transitions
from scheduler.models import Job, Lease, Node
from scheduler.sanitize import sanitize_message
from trainer import protocol


@transaction.atomic
def lease_job(job: Job, node: Node) -> Lease:
    """Lease a queued job to a free slot of the node."""
    job.refresh_from_db()
    transitions.apply_job_event(job, transitions.JobEvent.TAKE, actor="", attempts=job.attempts + 1)
    return Lease.objects.get(pk=leases.create_lease(job, node, slot=Lease.objects.held_by(node).count()).lease)


def end_lease(lease: Lease, outcome: str, **fields: Any) -> None:
    message = protocol.FinishLease.model_validate(sanitize_message({"outcome": outcome, **fields}))
    leases.finish_lease(Lease.objects.select_related("job", "node").get(pk=lease.pk), message)


def finish_job(job: Job, result: dict[str, Any], node: Node | None = None) -> None:
    """Report the result of a job, by the node that holds it or else by this one, which takes it first."""
    lease = Lease.objects.filter(job=job, state=Lease.State.ACTIVE).first()
    if lease is None:
        lease = lease_job(job, node or Node.objects.get_or_create(name="tracer", trusted=True)[0])
    end_lease(lease, "done", result=result)
    job.refresh_from_db()


def requeue_job(lease: Lease, reason: str = "The node was switched off.") -> None:
    """Lose the lease, so that its job is queued again."""
    assert leases.lose_lease(Lease.objects.select_related("job", "node").get(pk=lease.pk), reason)
