"""Leases: a node's right to work on a job. A lease is active while its heartbeats arrive.

Every change is a conditional UPDATE, with its Event and the job kind's hook in one transaction.
"""

from __future__ import annotations

import logging
from contextlib import suppress
from datetime import datetime, timedelta
from itertools import islice
from typing import Any

from django.conf import settings
from django.db import DatabaseError, IntegrityError, transaction
from django.db.models import F, Q
from django.db.models.functions import Coalesce, Greatest
from django.utils import timezone

from scheduler import (
    credit,
    deadlines,
    failure_reports,
    job_groups,
    matching,
    node_health,
    node_slots,
    node_tokens,
    pool,
    signing,
    storage,
    transitions,
    uploads,
)
from scheduler.errors import LeaseEndedError
from scheduler.job_kinds import get_job_kind
from scheduler.models import SITE_ACTOR, Event, FailureReport, Job, Lease, Node
from scheduler.transitions import JobEvent, StateError
from trainer import protocol

Fault = FailureReport.Fault
logger = logging.getLogger(__name__)

MAX_GROUPS_TRIED = 8
"""Groups tried per poll. If other nodes take the jobs of all of them, this node polls again soon."""


class JobOrderError(Exception):
    """The job's kind failed to build the order."""


def get_lease_duration() -> timedelta:
    return timedelta(seconds=settings.LEASE_SECONDS)


# --- claiming a job ---------------------------------------------------------------------------------------------------


def claim_job(
    node: Node, slot: int = 0, *, queue: matching.JobQueue | None = None, node_slot: matching.NodeSlot | None = None
) -> protocol.Lease | None:
    """Lease the best fitting job to the node; return None if there is none.

    `queue` and `node_slot`: pass them if they are at hand; they are loaded otherwise.
    """
    now = timezone.now()
    queue = queue or job_groups.load_queue(now)
    node_slot = node_slot or node_slots.build_node_slot(node, now, slot=slot)
    for group in islice(queue.find_fitting(node_slot), MAX_GROUPS_TRIED):
        if lease := lease_job_of_group(node, group, slot, node_slot):
            return lease
    return None


def lease_job_of_group(
    node: Node, group: matching.JobGroup, slot: int, node_slot: matching.NodeSlot
) -> protocol.Lease | None:
    """Lease the oldest job of a group; return None if none is left or the slot has a lease."""
    job: Job | None = None
    try:
        with transaction.atomic():
            job = claim_oldest_job(group, node)
            if job is None or deadlines.ends_too_soon(job, node, node_slot):
                transaction.set_rollback(True)
                return None
            return create_lease(job, node, slot)
    except (IntegrityError, StateError):
        return None  # one active lease per slot and per job: this node polled twice at once, or another one was faster
    except JobOrderError:
        assert job is not None
        logger.exception("Job %s has no valid order", job.pk)
        reason = "The site failed to build this job's order. The error is in the site's log."
        with suppress(StateError), transaction.atomic():
            transitions.fail_job(job, SITE_ACTOR, "infrastructure", reason)
        return None


def claim_oldest_job(group: matching.JobGroup, node: Node) -> Job | None:
    """Mark the group's oldest job as leased; return None if none is left for this node. Requires a transaction.

    Raises StateError if another node was faster.
    Skips jobs that this node has lately run for more than half of the hours that its owner lends to one run.
    """
    now = timezone.now()
    jobs = job_groups.filter_group(group, now)
    if node.max_hours is not None:
        jobs = jobs.filter(~job_groups.has_reached_time_limit(node, now))
    job = jobs.select_for_update(skip_locked=True, of=("self",)).select_related("release", "entry").first()
    if job is not None:
        transitions.apply_job_event(job, JobEvent.TAKE, actor="", attempts=job.attempts + 1)
    return job


def create_lease(job: Job, node: Node, slot: int = 0) -> protocol.Lease:
    token = node_tokens.generate_token("lease")
    gpus, accelerator = credit.describe_slot_gpus(node.hardware, slot, node.slots)
    lease = Lease.objects.create(
        job=job,
        node=node,
        attempt=job.attempts,
        slot=slot,
        gpus=gpus,
        accelerator=accelerator,
        token_hash=node_tokens.hash_token(token),
        started_at=job.state_since,
        expires_at=job.state_since + get_lease_duration(),
    )
    lease.spec = protocol.encode_message(build_job_spec(job, lease))
    lease.save(update_fields=["spec"])
    Event.record(pool.get_actor(node), job, f"Taken by {node.name}, attempt {job.attempts}.")
    get_job_kind(job).handle_lease(job, lease)
    return protocol.Lease(
        lease=lease.pk,
        token=token,
        seconds=settings.LEASE_SECONDS,
        spec=lease.spec,
        signature=signing.sign_message(lease.spec.encode()),
    )


def build_job_spec(job: Job, lease: Lease) -> protocol.JobSpec:
    """Return what the node has to do. Raises JobOrderError if the job's kind fails to build the order."""
    last = job.checkpoints.resumable().last() if lease.attempt > 1 else None
    try:
        resume = protocol.Checkpoint.model_validate(last.manifest) if last else None
        return protocol.JobSpec(
            job=job.pk,
            lease=lease.pk,
            node=lease.node_id,
            attempt=lease.attempt,
            release=storage.build_file_reference(job.release, "release.tar"),
            entry=storage.build_file_reference(job.entry, "entry.tar") if job.entry else None,
            order=get_job_kind(job).build_order(job, resume),
            limits=protocol.JobLimits.model_validate(job.limits),
            issued_at=lease.started_at.timestamp(),
        )
    except DatabaseError:
        raise
    except Exception as error:  # a broken job must not stop the queue
        raise JobOrderError from error


# --- renewing ---------------------------------------------------------------------------------------------------------


def renew_lease(lease: Lease, message: protocol.Heartbeat) -> protocol.HeartbeatReply:
    """Renew the lease and return whether the node should stop. Raises LeaseEndedError, also if it lasts too long."""
    now = timezone.now()
    if (reason := deadlines.find_overrun(lease, now)) and lose_lease(lease, reason):
        raise LeaseEndedError
    renewed = Lease.objects.active(lease).update(
        expires_at=now + get_lease_duration(),
        heartbeat_at=now,
        phase=message.phase,
        running_at=F("running_at") if message.phase == "preparing" else Coalesce("running_at", now),
        seconds=Greatest(F("seconds"), limit_seconds(lease, message.seconds, now)),
    )
    if not renewed:
        raise LeaseEndedError
    pool.record_heartbeat(lease.node, now, message.health)
    job, node = lease.job, lease.node
    if job.stop_requested:
        return protocol.HeartbeatReply(stop=job.stop_requested, reason=job.stop_reason)  # type: ignore[arg-type]
    if node.state == Node.State.PAUSED:
        return protocol.HeartbeatReply(stop="finish", reason=node.reason)
    if reason := deadlines.find_stop_reason(lease, now):
        return protocol.HeartbeatReply(stop="finish", reason=reason)
    return protocol.HeartbeatReply()


# --- ending -----------------------------------------------------------------------------------------------------------

LEASE_ENDS = {
    "done": Lease.State.FINISHED,
    "failed": Lease.State.FINISHED,
    "released": Lease.State.RELEASED,
    "": Lease.State.LOST,
}
"""The state that an active lease gets, by the outcome that its node reports; without a report it is lost."""


@transaction.atomic
def finish_lease(lease: Lease, message: protocol.FinishLease) -> None:
    """Record the node's result; a repeat changes nothing. Raises LeaseEndedError if the lease ended otherwise."""
    try:
        end_lease(lease, message.outcome, message.reason, seconds=message.seconds or 0.0)
    except LeaseEndedError:
        if lease.outcome == message.outcome:
            return
        raise
    job, actor = lease.job, pool.get_actor(lease.node)
    # The job may have changed since it was read with the lease's token.
    job.refresh_from_db(fields=["state", "stop_requested", "stop_reason", "hold_requested", "failures", "result"])
    if job.stop_requested == "cancel":
        transitions.finish_cancellation(job, actor)
    elif message.outcome == "released":
        failure_reports.process_release(lease, message.reason or "The node handed it back.")
    elif message.outcome == "done":
        uploads.attach_files(lease, message.files)
        if problem := get_job_kind(job).find_result_problem(job, message.result):
            failure_reports.process_failure(lease, Fault.MACHINE, problem)
            return
        transitions.apply_job_event(job, JobEvent.FINISH, actor=actor, result=message.result)
        failure_reports.refute_claims(lease)
        node_health.record_success(lease.node, job)
        if job.kind == matching.SELF_TEST_KIND:
            failure_reports.readmit_node(lease.node)
    else:
        fault, reason = failure_reports.classify_failure(lease, message)
        if fault == Fault.MODEL:
            uploads.attach_files(lease, message.files)
        failure_reports.process_failure(lease, fault, reason)


@transaction.atomic
def lose_lease(lease: Lease, reason: str, *, expired_before: datetime | None = None) -> bool:
    """End a lease as lost and requeue its job; return whether this call did.

    With `expired_before` only if the lease is still expired then: a heartbeat may have renewed it.
    """
    try:
        end_lease(lease, "", reason, expired_before=expired_before)
    except LeaseEndedError:
        return False
    failure_reports.process_silence(lease, reason)
    return True


def end_lease(
    lease: Lease, outcome: str, reason: str, *, seconds: float = 0.0, expired_before: datetime | None = None
) -> None:
    """End an active lease, as the node says, or without an outcome as lost. Its Event is the job's.

    Raises LeaseEndedError if it is not active, or has not expired before that time.
    """
    now = timezone.now()
    fields: dict[str, Any] = {"ended_at": now, "reason": reason[:500], "outcome": outcome}
    fields["seconds"] = Greatest(F("seconds"), limit_seconds(lease, seconds, now))
    where = Q(expires_at__lt=expired_before) if expired_before else None
    since = [Lease.State.ACTIVE]
    if not transitions.transition(lease, LEASE_ENDS[outcome], since=since, actor="", message="", where=where, **fields):
        raise LeaseEndedError


def limit_seconds(lease: Lease, seconds: float, now: datetime) -> float:
    """Limit the seconds that a node reports to the time that its lease has lasted."""
    lasted = (now - lease.started_at).total_seconds() + uploads.MAX_CLOCK_SKEW_SECONDS
    return max(min(seconds, lasted), 0.0)
