"""State changes. `transition` makes them all: one conditional UPDATE and an Event. The others are those of a job."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from django.db import models, transaction
from django.utils import timezone

from scheduler.job_kinds import get_job_kind
from scheduler.models import Event, Job
from trainer import protocol

WAITING_STATES = (Job.State.HELD, Job.State.QUEUED)
FINAL_STATES = (Job.State.DONE, Job.State.FAILED, Job.State.CANCELLED)
NO_STOP_REQUEST: dict[str, Any] = {"stop_requested": "", "stop_reason": "", "hold_requested": False}


def transition(
    row: models.Model,
    to: str,
    *,
    since: Collection[str],
    actor: str,
    message: str,
    where: models.Q | None = None,
    event_kind: str = "",
    **fields: Any,
) -> bool:
    """Change the row's `state` if it is one of `since`, and record an Event; return whether it changed.

    `fields`: other columns to set, values or expressions. `where`: a further condition. An empty `message` records no
    Event: the caller records the change on another row.
    """
    fields["state"] = to
    with transaction.atomic(savepoint=False):
        rows = type(row)._default_manager.filter(where or models.Q(), pk=row.pk, state__in=since)
        if not rows.update(**fields):
            row.refresh_from_db()
            return False
        for name, value in fields.items():
            if not hasattr(value, "resolve_expression"):
                setattr(row, name, value)
        if expressions := [name for name, value in fields.items() if hasattr(value, "resolve_expression")]:
            row.refresh_from_db(fields=expressions)
        if message:
            Event.record(actor, row, message, event_kind)
    return True


def change_job_state(
    job: Job, to: Job.State, *, since: Collection[Job.State], actor: str, message: str, reason: str = "", **fields: Any
) -> bool:
    """Change a job's state by `transition`, with its reason and times; a stop request ends. Requires a transaction."""
    fields = {"reason": reason[:500], "state_since": timezone.now(), **NO_STOP_REQUEST, **fields}
    if to in FINAL_STATES:
        fields["finished_at"] = fields["state_since"]
    return transition(job, to, since=since, actor=actor, message=message, **fields)


# --- requests by people -----------------------------------------------------------------------------------------------


@transaction.atomic
def cancel_job(job: Job, actor: str, reason: str) -> bool:
    """Cancel a job; return whether there was anything to cancel.

    A waiting job is cancelled now. A running job is cancelled when its node has received the request with a heartbeat,
    or when its lease ends.
    """
    return mark_cancelled(job, actor, reason, since=WAITING_STATES) or request_stop(job, "cancel", actor, reason)


@transaction.atomic
def request_hand_back(job: Job, actor: str, reason: str, *, hold: bool = False) -> bool:
    """Ask the node to save a checkpoint and hand the job back. With `hold` the job is held afterwards."""
    return request_stop(job, "finish", actor, reason, hold=hold)


def request_stop(job: Job, how: str, actor: str, reason: str, *, hold: bool = False) -> bool:
    """Record a stop request for the job's node; return whether it is recorded. `cancel` is never replaced."""
    leased = Job.objects.filter(pk=job.pk, state=Job.State.LEASED).exclude(stop_requested__in=["cancel", how])
    requested = leased.update(stop_requested=how, stop_reason=reason[:500], hold_requested=hold)
    job.refresh_from_db()
    if requested:
        verb = "cancel" if how == "cancel" else "hand back"
        Event.record(actor, job, f"Requested the node to {verb} it: {reason}")
    return requested == 1 or (job.state == Job.State.LEASED and job.stop_requested == how)


@transaction.atomic
def hold_job(job: Job, actor: str, reason: str) -> bool:
    """Hold a job until `queue_job`. A node that runs it hands it back after its next checkpoint."""
    held = change_job_state(
        job, Job.State.HELD, since=[Job.State.QUEUED], actor=actor, message=f"Held: {reason}", reason=reason
    )
    return held or request_hand_back(job, actor, reason, hold=True)


@transaction.atomic
def queue_job(job: Job, actor: str) -> bool:
    """Queue a held job again."""
    since, now = [Job.State.HELD], timezone.now()
    return change_job_state(job, Job.State.QUEUED, since=since, actor=actor, message="Queued again.", queued_at=now)


@transaction.atomic
def raise_priority(job: Job, actor: str) -> bool:
    """Raise an unfinished job's priority by one step, at most to that of the nightly; return whether it rose."""
    to = max((step for step in Job.Priority if Job.Priority.NIGHTLY <= step < job.priority), default=None)
    if to is None:
        return False
    raised = Job.objects.filter(pk=job.pk, priority=job.priority).exclude(state__in=FINAL_STATES).update(priority=to)
    job.refresh_from_db()
    if raised:
        Event.record(actor, job, f"Its priority is now {to.label.lower()}.")
    return raised == 1


@transaction.atomic
def retry_job(job: Job, actor: str) -> bool:
    """Queue a job again that infrastructure failed; return whether it was. It resumes from its last checkpoint.

    A job that is done is queued, too: its result was incomplete, or the run would not be retried. The job kind's own
    rows are the caller's business. A failure of the model is final.
    """
    if job.cause == "model":
        return False
    fields: dict[str, Any] = {"cause": "", "failures": 0, "finished_at": None, "queued_at": timezone.now()}
    since = [Job.State.FAILED, Job.State.DONE]
    return change_job_state(job, Job.State.QUEUED, since=since, actor=actor, message="Queued again.", **fields)


# --- the end of a lease, inside its transaction -----------------------------------------------------------------------


def finish_job(job: Job, actor: str, result: dict[str, Any]) -> bool:
    """Mark a job as done."""
    done = change_job_state(job, Job.State.DONE, since=[Job.State.LEASED], actor=actor, message="Done.", result=result)
    if done:
        get_job_kind(job).handle_done(job, result)
    return done


def fail_job(
    job: Job, actor: str, cause: protocol.Cause, reason: str, *, since: Collection[Job.State] = (Job.State.LEASED,)
) -> bool:
    """Mark a job as failed for good."""
    message = f"Failed: {reason}"
    failed = change_job_state(
        job, Job.State.FAILED, since=since, actor=actor, message=message, reason=reason, cause=cause
    )
    if failed:
        get_job_kind(job).handle_failure(job, cause, reason)
    return failed


def requeue_job(job: Job, actor: str, reason: str, *, counts: bool, hold: bool = False, **fields: Any) -> bool:
    """Cancel, hold, fail or queue an unfinished job whose lease has ended.

    `counts`: the lease was lost or failed. After `max_attempts` of those without a new checkpoint the job fails.
    `hold`: hold the job for this reason. `fields`: other columns to set.
    """
    job.refresh_from_db()
    if job.stop_requested == "cancel":
        return finish_cancellation(job, actor)
    failures = job.failures + (1 if counts else 0)
    if counts and failures >= job.max_attempts:
        Job.objects.filter(pk=job.pk).update(failures=failures, **fields)
        reason = f"Given up after {failures} attempts without progress. The last: {reason}"
        return fail_job(job, actor, "infrastructure", reason)
    hold = hold or job.hold_requested
    to = Job.State.HELD if hold else Job.State.QUEUED
    message = f"Held: {job.stop_reason or reason}" if hold else f"Back in the queue: {reason}"
    requeued = change_job_state(
        job, to, since=[Job.State.LEASED], actor=actor, message=message, reason=reason, failures=failures, **fields
    )
    if requeued:
        get_job_kind(job).handle_requeue(job, reason)
    return requeued


def finish_cancellation(job: Job, actor: str) -> bool:
    """Cancel a leased job whose cancellation was requested."""
    return mark_cancelled(job, actor, job.stop_reason, since=[Job.State.LEASED])


def mark_cancelled(job: Job, actor: str, reason: str, *, since: Collection[Job.State]) -> bool:
    cancelled = change_job_state(
        job, Job.State.CANCELLED, since=since, actor=actor, message=f"Cancelled: {reason}", reason=reason
    )
    if cancelled:
        get_job_kind(job).handle_cancellation(job, reason)
    return cancelled
