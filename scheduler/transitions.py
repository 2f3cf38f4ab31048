"""What people ask of a job, and how a job changes state: by conditional UPDATE, with an Event, in one transaction."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any

from django.db import transaction
from django.db.models import BigIntegerField
from django.utils import timezone

from scheduler.job_kinds import get_job_kind
from scheduler.models import Blob, Event, Job
from scheduler.prepared import Later, PreparedUpdate
from trainer import protocol

WAITING_STATES = (Job.State.HELD, Job.State.QUEUED)
FINAL_STATES = (Job.State.DONE, Job.State.FAILED, Job.State.CANCELLED)
NO_STOP_REQUEST = {"stop_requested": "", "stop_reason": "", "hold_requested": False}


def change(job: Job, to: Job.State, *, since: Sequence[Job.State], actor: str, sentence: str, **fields: Any) -> bool:
    """Change the state if it is one of `since`, and say so; return whether it changed. Bring a transaction."""
    now = timezone.now()
    if to in FINAL_STATES:
        fields["finished_at"] = now
    fields |= {"state": to, "state_since": now}
    values = {name: value.pk if isinstance(value, Blob) else value for name, value in fields.items()}
    if not changing(tuple(since), tuple(fields)).run(job=job.pk, **values):
        job.refresh_from_db()
        return False
    for name, value in fields.items():  # the row is ours until the transaction ends
        setattr(job, name, value)
    Event.record(actor, job, sentence)
    return True


@cache
def changing(since: tuple[Job.State, ...], names: tuple[str, ...]) -> PreparedUpdate:
    """Return the UPDATE of these fields of a job that is in one of these states. There are a dozen of them."""
    values = {name: Later(name, Job._meta.get_field(name)) for name in names}
    return PreparedUpdate(lambda: (Job.objects.filter(pk=Later("job", BigIntegerField()), state__in=since), values))


# --- what people ask -----------------------------------------------------------------------------------------------


@transaction.atomic
def cancel_job(job: Job, actor: str, reason: str) -> bool:
    """Cancel a job; return whether there was anything to cancel.

    One that waits is cancelled now. One that a node works on is cancelled when the node has heard of it with its
    next heartbeat, or when its lease ends without a word.
    """
    if change(
        job,
        Job.State.CANCELLED,
        since=WAITING_STATES,
        actor=actor,
        sentence=f"Cancelled: {reason}",
        reason=reason[:500],
    ):
        get_job_kind(job).cancelled(job, reason)
        return True
    return request_stop(job, "cancel", actor, reason)


@transaction.atomic
def request_hand_back(job: Job, actor: str, reason: str, *, hold: bool = False) -> bool:
    """Ask the node to keep its next checkpoint and hand the job back; with `hold` it is not queued again."""
    return request_stop(job, "finish", actor, reason, hold=hold)


def request_stop(job: Job, how: str, actor: str, reason: str, *, hold: bool = False) -> bool:
    """Leave word for the node that works on the job; a cancellation is never softened. Return whether it was left."""
    leased = Job.objects.filter(pk=job.pk, state=Job.State.LEASED).exclude(stop_requested__in=["cancel", how])
    asked = leased.update(stop_requested=how, stop_reason=reason[:500], hold_requested=hold)
    job.refresh_from_db()
    if asked:
        verb = "cancel" if how == "cancel" else "hand back"
        Event.record(actor, job, f"The node was asked to {verb} it: {reason}")
    return asked == 1 or (job.state == Job.State.LEASED and job.stop_requested == how)


@transaction.atomic
def hold_job(job: Job, actor: str, reason: str) -> bool:
    """Keep a job back until `queue`; a node that works on it hands it back after its next checkpoint."""
    if change(
        job, Job.State.HELD, since=[Job.State.QUEUED], actor=actor, sentence=f"Held: {reason}", reason=reason[:500]
    ):
        return True
    return request_hand_back(job, actor, reason, hold=True)


@transaction.atomic
def queue_job(job: Job, actor: str) -> bool:
    """Let a held job go on."""
    return change(
        job,
        Job.State.QUEUED,
        since=[Job.State.HELD],
        actor=actor,
        sentence="Queued again.",
        reason="",
        queued_at=timezone.now(),
    )


@transaction.atomic
def raise_priority(job: Job, actor: str) -> bool:
    """Move a job that is not over one step up, at most to where the nightly is; return whether it moved."""
    to = max((step for step in Job.Priority if Job.Priority.NIGHTLY <= step < job.priority), default=None)
    if to is None:
        return False
    raised = Job.objects.filter(pk=job.pk, priority=job.priority).exclude(state__in=FINAL_STATES).update(priority=to)
    job.refresh_from_db()
    if raised:
        Event.record(actor, job, f"Its priority is now {to.label.lower()}.")
    return raised == 1


@transaction.atomic
def retry_job(job: Job, actor: str, *, release: Blob | None = None) -> bool:
    """Put a job that failed through no fault of its model back into the queue; it goes on from its last checkpoint.

    For the owner of its purpose, who has to bring his own rows along. A model's own failure is final.
    """
    if job.cause == "model":
        return False
    fresh = {"release": release} if release else {}
    return change(
        job,
        Job.State.QUEUED,
        since=[Job.State.FAILED],
        actor=actor,
        sentence="Queued again.",
        reason="",
        cause="",
        failures=0,
        finished_at=None,
        queued_at=timezone.now(),
        **NO_STOP_REQUEST,
        **fresh,
    )


# --- what leases make of a job, inside their transaction -------------------------------------------------------------


def finish_job(job: Job, actor: str, result: dict[str, Any]) -> bool:
    """The node has done all of it."""
    done = change(
        job,
        Job.State.DONE,
        since=[Job.State.LEASED],
        actor=actor,
        sentence="Done.",
        reason="",
        result=result,
        **NO_STOP_REQUEST,
    )
    if done:
        get_job_kind(job).done(job, result)
    return done


def fail_job(
    job: Job, actor: str, cause: protocol.Cause, reason: str, *, since: Sequence[Job.State] = (Job.State.LEASED,)
) -> bool:
    """It has failed for good."""
    failed = change(
        job,
        Job.State.FAILED,
        since=since,
        actor=actor,
        sentence=f"Failed: {reason}",
        reason=reason[:500],
        cause=cause,
        **NO_STOP_REQUEST,
    )
    if failed:
        get_job_kind(job).failed(job, cause, reason)
    return failed


def requeue_job(job: Job, actor: str, reason: str, *, counts: bool) -> bool:
    """Its lease is over and it is not finished: cancel it, hold it, give up, or queue it to go on.

    `counts`: the lease was lost or failed; too many of those without a new checkpoint and the job fails.
    """
    job.refresh_from_db()
    if job.stop_requested == "cancel":
        return finish_cancellation(job, actor)
    failures = job.failures + (1 if counts else 0)
    if counts and failures >= job.max_attempts:
        Job.objects.filter(pk=job.pk).update(failures=failures)
        return fail_job(
            job, actor, "infrastructure", f"Given up after {failures} attempts without progress. The last: {reason}"
        )
    to = Job.State.HELD if job.hold_requested else Job.State.QUEUED
    sentence = f"Held: {job.stop_reason}" if job.hold_requested else f"Back in the queue: {reason}"
    back = change(
        job,
        to,
        since=[Job.State.LEASED],
        actor=actor,
        sentence=sentence,
        reason=reason[:500],
        failures=failures,
        **NO_STOP_REQUEST,
    )
    if back:
        get_job_kind(job).requeued(job, reason)
    return back


def finish_cancellation(job: Job, actor: str) -> bool:
    reason = job.stop_reason
    cancelled = change(
        job,
        Job.State.CANCELLED,
        since=[Job.State.LEASED],
        actor=actor,
        sentence=f"Cancelled: {reason}",
        reason=reason,
        **NO_STOP_REQUEST,
    )
    if cancelled:
        get_job_kind(job).cancelled(job, reason)
    return cancelled
