"""Leases: how a node gets a job, keeps it, and is rid of it. Liveness is the heartbeat's age, never the job's.

Every change is a conditional UPDATE whose count is looked at, with its Event and the kind's hook in one transaction.
"""

from __future__ import annotations

import logging
from datetime import datetime, timedelta
from typing import Any, Literal

from django.conf import settings
from django.db import DatabaseError, IntegrityError, transaction
from django.db.models import (
    BigIntegerField,
    DateTimeField,
    F,
    FloatField,
    OuterRef,
    QuerySet,
    Subquery,
    TextField,
)
from django.db.models.functions import Greatest
from django.utils import timezone

from scheduler import credit, deadlines, job_groups, matching, node_slots, pool, signing, transitions
from scheduler.errors import LeaseEndedError
from scheduler.job_kinds import get_job_kind
from scheduler.models import Blob, Checkpoint, Event, Job, Lease, Node, events
from scheduler.models.jobs import LeaseQuerySet
from scheduler.node_api import auth, uploads
from scheduler.prepared import (
    Later,
    NextNumber,
    Prepared,
    PreparedInsert,
    PreparedInserts,
    PreparedTake,
    PreparedUpdate,
)
from trainer import protocol

logger = logging.getLogger(__name__)

MAX_GROUPS_TRIED = 8
"""Lines that are tried in one go; where all are contested the node asks again in a moment."""
MAX_CLOCK_SKEW_SECONDS = 60.0
"""Seconds by which a node may say to have worked longer than it has had the job."""
SITE = "site"


class JobOrderError(Exception):
    """The job's kind cannot say what is to be done."""


def get_lease_duration() -> timedelta:
    return timedelta(seconds=settings.LEASE_SECONDS)


# --- getting a job ---------------------------------------------------------------------------------------------------


def claim_job(
    node: Node,
    lane: int = 0,
    *,
    queue: matching.JobQueue | None = None,
    seeker: matching.NodeSlot | None = None,
) -> protocol.Lease | None:
    """Give the node the job that it should do now, or None. Whoever has just looked may bring along what was seen."""
    now = timezone.now()
    queue = queue or job_groups.get_queue(now)
    seeker = seeker or node_slots.build_node_slot(node, now, lane=lane)
    tried: list[matching.JobGroup] = []
    for _ in range(MAX_GROUPS_TRIED):
        line = next((line for line in queue.fitting(seeker) if not any(map(line.is_alike, tried))), None)
        if line is None:
            break
        # First it is said that it is taken: otherwise all that ask at once would try the same job, and all but one
        # in vain.
        if queue.served(line):
            if granted := lease_job_of_group(node, line, lane, queue, seeker):
                return granted
            tried.append(line)
    return None


def lease_job_of_group(
    node: Node, line: matching.JobGroup, lane: int, queue: matching.JobQueue, seeker: matching.NodeSlot
) -> protocol.Lease | None:
    """Lease the first job of a line, which counts as served, to the node; None when there is none left, or the lane
    holds a lease already."""
    job: Job | None = None
    try:
        with transaction.atomic():
            job = claim_oldest_job(line, node)
            if job is None or deadlines.ends_too_soon(job, node, seeker):
                queue.unserved(line)
                if job is None and node.max_hours is None:  # otherwise there may be some that are not for this node
                    queue.forget(line)
                transaction.set_rollback(True)
                return None
            return create_lease(job, node, lane)
    except IntegrityError:
        queue.unserved(line)
        return None  # one active lease per lane, per job: this node asked twice at once
    except JobOrderError:
        assert job is not None
        logger.exception("Job %s cannot be ordered", job.pk)
        with transaction.atomic():
            reason = "The site could not say what this job is to do; its people have been told."
            transitions.fail_job(job, SITE, "infrastructure", reason, since=[Job.State.QUEUED])
        return None


def claim_oldest_job(line: matching.JobGroup, node: Node) -> Job | None:
    """Claim the first job of the line with one conditional UPDATE; None where there is none left for this node.

    Not one that has had this node's hours. The job has attributes more: its `lease_number`, and two sizes."""
    now, alike = timezone.now(), job_groups.get_group_values(line)
    if node.max_hours is None:
        return CLAIM.first(**alike, now=now)
    half = timedelta(hours=node.max_hours) / 2
    return CLAIM_FOR_HOURS.first(**alike, now=now, node=node.pk, since=now - job_groups.HAND_ON_PERIOD, half=half)


def claiming(chosen: QuerySet[Job]) -> tuple[QuerySet[Job], dict[str, Any], QuerySet[Job]]:
    taken = {"state": Job.State.LEASED, "reason": "", **transitions.NO_STOP_REQUEST}
    changes = {**taken, "attempts": F("attempts") + 1, "state_since": Later("now", DateTimeField())}
    return (
        chosen,
        changes,
        Job.objects.annotate(
            lease_number=NextNumber(Lease), release_size=size_of("release"), entry_size=size_of("entry")
        ),
    )


def size_of(blob: str) -> Subquery:
    return Subquery(Blob.objects.filter(pk=OuterRef(blob)).values("size"))


CLAIM = PreparedTake(lambda: claiming(job_groups.in_line()))
CLAIM_FOR_HOURS = PreparedTake(lambda: claiming(job_groups.not_handed_on()))
TAKE = PreparedInserts(PreparedInsert(lambda: Lease, numbered=True), events.ADD)
LAST = Prepared(lambda: Checkpoint.objects.filter(job=Later("job", BigIntegerField())).order_by("-step")[:1])


def create_lease(job: Job, node: Node, lane: int = 0) -> protocol.Lease:
    """Make the lease of a job that has just been claimed."""
    token = auth.generate_token("lease")
    gpus, accelerator = credit.describe_slot_gpus(node.hardware, lane, node.lanes)
    lease = Lease(
        pk=vars(job)["lease_number"],
        job=job,
        node=node,
        attempt=job.attempts,
        lane=lane,
        gpus=gpus,
        accelerator=accelerator,
        token_hash=auth.hash_token(token),
        started_at=job.state_since,
        expires_at=job.state_since + get_lease_duration(),
    )
    lease.spec = protocol.encode_message(build_job_spec(job, lease))
    TAKE.add(lease, Event.of(pool.get_actor(node), job, f"Taken by {node.name}, attempt {job.attempts}."))
    get_job_kind(job).leased(job, lease)
    return protocol.Lease(
        lease=lease.pk,
        token=token,
        seconds=settings.LEASE_SECONDS,
        spec=lease.spec,
        signature=signing.sign_message(lease.spec.encode()),
    )


def build_job_spec(job: Job, lease: Lease) -> protocol.JobSpec:
    """Return what the node is told to do; raise Unorderable when the kind cannot say."""
    last = LAST.first(job=job.pk) if lease.attempt > 1 else None  # who has not had it yet has left none
    try:
        resume = protocol.Checkpoint.model_validate(last.manifest) if last else None
        return protocol.JobSpec(
            job=job.pk,
            lease=lease.pk,
            node=lease.node_id,
            attempt=lease.attempt,
            release=build_file_reference(job, "release"),
            entry=build_file_reference(job, "entry") if job.entry_id else None,
            order=get_job_kind(job).order(job, resume),
            limits=protocol.JobLimits.model_validate(job.limits),
            issued_at=lease.started_at.timestamp(),
        )
    except DatabaseError:
        raise
    except Exception as error:  # a job that cannot be ordered must not stop the queue
        raise JobOrderError from error


def build_file_reference(job: Job, blob: Literal["release", "entry"]) -> protocol.FileRef:
    """Return one of the job's two files, by what the claim has told of it."""
    facts = vars(job)
    return protocol.FileRef(path=f"{blob}.tar", sha256=facts[f"{blob}_id"], size=facts[f"{blob}_size"])


# --- keeping it ----------------------------------------------------------------------------------------------------


def held() -> LeaseQuerySet:
    """Return an active lease whose number is told later."""
    return Lease.objects.active(Later("lease", BigIntegerField()))


def longest() -> Greatest:
    """Seconds of a lease only grow."""
    return Greatest(F("seconds"), Later("seconds", FloatField()))


RENEWED = {
    "expires_at": Later("until", DateTimeField()),
    "heartbeat_at": Later("now", DateTimeField()),
    "phase": Later("phase", TextField()),
}
RENEW = PreparedUpdate(lambda: (held(), {**RENEWED, "seconds": longest()}))


def renew_lease(lease: Lease, message: protocol.Heartbeat) -> protocol.HeartbeatReply:
    """Renew the lease and say whether the node should stop; raise Over when the lease has ended."""
    now = timezone.now()
    seconds = limit_seconds(lease, message.seconds, now)
    if not RENEW.run(lease=lease.pk, until=now + get_lease_duration(), now=now, phase=message.phase, seconds=seconds):
        raise LeaseEndedError
    pool.record_heartbeat(lease.node, now, message.health)
    job, node = lease.job, lease.node
    if job.stop_requested:
        return protocol.HeartbeatReply(stop=job.stop_requested, reason=job.stop_reason)  # type: ignore[arg-type]
    if node.state == Node.State.PAUSED:
        return protocol.HeartbeatReply(stop="finish", reason=node.reason or "This node was paused.")
    if reason := deadlines.find_stop_reason(lease, now):
        return protocol.HeartbeatReply(stop="finish", reason=reason)
    return protocol.HeartbeatReply()


# --- being rid of it -------------------------------------------------------------------------------------------------


ASKED = ("state", "stop_requested", "stop_reason", "hold_requested", "failures", "result")
"""Of a job: what may have changed since the call that ends its lease was let in."""
WORD = Prepared(lambda: Job.objects.filter(pk=Later("job", BigIntegerField())).order_by().values_list(*ASKED))


@transaction.atomic
def finish_lease(lease: Lease, message: protocol.FinishLease) -> None:
    """Take the node's last word; the same word again changes nothing. Raise Over when the lease ended otherwise."""
    ended = Lease.State.RELEASED if message.outcome == "released" else Lease.State.FINISHED
    if not end_lease(lease, ended, message.reason, outcome=message.outcome, seconds=message.seconds):
        lease.refresh_from_db()
        if lease.outcome == message.outcome:
            return
        raise LeaseEndedError
    job, node, actor = lease.job, lease.node, pool.get_actor(lease.node)
    for name, value in zip(ASKED, WORD.tuples(job=job.pk)[0], strict=True):
        setattr(job, name, value)
    if job.stop_requested == "cancel":
        transitions.finish_cancellation(job, actor)
    elif message.outcome == "done":
        uploads.attach_files(lease, message.files)
        transitions.finish_job(job, actor, message.result)
        pool.record_job_success(node)
    elif message.outcome == "released":
        transitions.requeue_job(job, actor, message.reason or "The node handed it back.", counts=False)
    elif message.cause == "model":
        uploads.attach_files(lease, message.files)
        transitions.fail_job(job, actor, "model", message.reason or "The model failed; its log says more.")
        pool.record_job_success(node)
    else:
        transitions.requeue_job(job, actor, message.reason or "The node could not go on.", counts=True)
        if not lease.limit_exceeded:  # a limit of the site is not the node's fault
            pool.record_node_failure(node)


@transaction.atomic
def lose_lease(lease: Lease, reason: str, *, expired_before: datetime | None = None) -> bool:
    """Take a lease away and put its job back; return whether this call did.

    With `expired_before` only if it has still not been renewed by then: a heartbeat may have come meanwhile.
    """
    if not end_lease(lease, Lease.State.LOST, reason, expired_before=expired_before):
        return False
    transitions.requeue_job(lease.job, SITE, reason, counts=True)
    return True


def end_lease(
    lease: Lease,
    state: Lease.State,
    reason: str,
    *,
    outcome: str = "",
    seconds: float | None = None,
    expired_before: datetime | None = None,
) -> bool:
    """End an active lease; return whether this call did."""
    now = timezone.now()
    said = {"state": state, "now": now, "reason": reason[:500], "outcome": outcome}
    if expired_before:
        assert seconds is None, "who fell silent has said nothing"
        return END_SILENT.run(lease=lease.pk, before=expired_before, **said) == 1
    return END.run(lease=lease.pk, seconds=limit_seconds(lease, seconds or 0.0, now), **said) == 1


ENDED = {
    "state": Later("state", TextField()),
    "ended_at": Later("now", DateTimeField()),
    "reason": Later("reason", TextField()),
    "outcome": Later("outcome", TextField()),
}
END = PreparedUpdate(lambda: (held(), {**ENDED, "seconds": longest()}))
END_SILENT = PreparedUpdate(lambda: (held().filter(expires_at__lt=Later("before", DateTimeField())), ENDED))


def limit_seconds(lease: Lease, seconds: float, now: datetime) -> float:
    """Return the seconds of a lease, not more than it has lasted."""
    lasted = (now - lease.started_at).total_seconds() + MAX_CLOCK_SKEW_SECONDS
    return max(min(seconds, lasted), 0.0)
