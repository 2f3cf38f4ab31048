"""State changes. `transition` makes them all: one conditional UPDATE and an Event.

Of a job: the table of its events, and the one function that applies an event or raises.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

from django.db import models, transaction
from django.utils import timezone

from scheduler.job_kinds import get_job_kind
from scheduler.models import Event, Job
from trainer import protocol

State = Job.State
WAITING_STATES = (State.HELD, State.QUEUED)
FINAL_STATES = (State.DONE, State.FAILED, State.CANCELLED)
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


# --- the states of a job ----------------------------------------------------------------------------------------------


class StateError(ValueError):
    """The row's state does not allow the event."""


class JobEvent(models.TextChoices):
    TAKE = "take", "a node takes it"
    FINISH = "finish", "its node reports the result"
    FAIL = "fail", "the model failed, or no node can do it"
    LEAVE = "leave", "its node hands it back or is lost"
    LEAVE_HELD = "leave held", "the same, and it is to be held"
    STOP = "stop", "its node has stopped as requested"
    HOLD = "hold", "a person holds it"
    QUEUE = "queue", "a person ends that"
    CANCEL = "cancel", "a person or the site cancels it"
    RECALL = "recall", "its run waits for something else, or stops"
    RETRY = "retry", "its run is retried, or goes on"


@dataclass(frozen=True)
class JobTransition:
    since: tuple[State, ...]
    to: State
    message: str = "{reason}"
    handler: tuple[str, ...] = ()
    """Method of `JobKind` that is called then, and the columns of the job that it gets."""


DONE, FAILURE = ("handle_done", "result"), ("handle_failure", "cause", "reason")
REQUEUE, CANCELLATION = ("handle_requeue", "reason"), ("handle_cancellation", "reason")
CANCELLED, HELD = "Cancelled: {reason}", "Held: {reason}"
JOB_TRANSITIONS: Mapping[JobEvent, JobTransition] = {
    JobEvent.TAKE: JobTransition((State.QUEUED,), State.LEASED),
    JobEvent.FINISH: JobTransition((State.LEASED,), State.DONE, "Done.", DONE),
    JobEvent.FAIL: JobTransition((State.QUEUED, State.LEASED), State.FAILED, "Failed: {reason}", FAILURE),
    JobEvent.LEAVE: JobTransition((State.LEASED,), State.QUEUED, "Back in the queue: {reason}", REQUEUE),
    JobEvent.LEAVE_HELD: JobTransition((State.LEASED,), State.HELD, HELD, REQUEUE),
    JobEvent.STOP: JobTransition((State.LEASED,), State.CANCELLED, CANCELLED, CANCELLATION),
    JobEvent.HOLD: JobTransition((State.QUEUED,), State.HELD, HELD),
    JobEvent.QUEUE: JobTransition((State.HELD,), State.QUEUED, "Queued again."),
    JobEvent.CANCEL: JobTransition(WAITING_STATES, State.CANCELLED, CANCELLED, CANCELLATION),
    JobEvent.RECALL: JobTransition(WAITING_STATES, State.CANCELLED),
    JobEvent.RETRY: JobTransition(FINAL_STATES, State.QUEUED, "Queued again."),
}


def apply_job_event(job: Job, event: JobEvent, *, actor: str, reason: str = "", **fields: Any) -> None:
    """Change a job by an event, record it and tell the job's kind; a stop request ends. Requires a transaction.

    `fields`: other columns to set. Raises StateError, and changes nothing, where the job's state does not allow it.
    """
    step, now = JOB_TRANSITIONS[event], timezone.now()
    fields = {"reason": reason[:500], "state_since": now, **NO_STOP_REQUEST, **fields}
    if step.to in FINAL_STATES:
        fields["finished_at"] = now
    message = step.message.format(reason=reason)
    if not transition(job, step.to, since=step.since, actor=actor, message=message, **fields):
        raise StateError(f"Job {job.pk} is {job.state}. So this is not possible: {event.label}.")
    if step.handler:
        name, *columns = step.handler
        getattr(get_job_kind(job), name)(job, *(getattr(job, column) for column in columns))


# --- requests by people -----------------------------------------------------------------------------------------------


@transaction.atomic
def cancel_job(job: Job, actor: str, reason: str) -> bool:
    """Cancel a job; return whether there was anything to cancel.

    A waiting job is cancelled now. A running job is cancelled when its node has received the request with a heartbeat,
    or when its lease ends.
    """
    try:
        apply_job_event(job, JobEvent.CANCEL, actor=actor, reason=reason)
    except StateError:
        return request_stop(job, "cancel", actor, reason)
    return True


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
    """Hold a job until it is queued. A node that runs it hands it back after its next checkpoint."""
    try:
        apply_job_event(job, JobEvent.HOLD, actor=actor, reason=reason)
    except StateError:
        return request_hand_back(job, actor, reason, hold=True)
    return True


@transaction.atomic
def queue_job(job: Job, actor: str) -> None:
    """Queue a held job again. Raises StateError."""
    apply_job_event(job, JobEvent.QUEUE, actor=actor, queued_at=timezone.now())


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
def retry_job(job: Job, actor: str) -> None:
    """Queue a job again that infrastructure failed. It resumes from its last checkpoint. Raises StateError.

    A job that is done is queued, too: its result was incomplete, or the run would not be retried. The job kind's own
    rows are the caller's business. A failure of the model is final.
    """
    if job.cause == "model":
        raise StateError(f"Job {job.pk} failed because of the model.")
    fields: dict[str, Any] = {"cause": "", "failures": 0, "finished_at": None, "queued_at": timezone.now()}
    apply_job_event(job, JobEvent.RETRY, actor=actor, **fields)


# --- the end of a lease, inside its transaction -----------------------------------------------------------------------


def fail_job(job: Job, actor: str, cause: protocol.Cause, reason: str, **fields: Any) -> None:
    """Mark a job as failed for good."""
    apply_job_event(job, JobEvent.FAIL, actor=actor, reason=reason, cause=cause, **fields)


def requeue_job(job: Job, actor: str, reason: str, *, counts: bool, hold: bool = False, **fields: Any) -> None:
    """Cancel, hold, fail or queue a leased job whose lease has ended.

    `counts`: the lease was lost or failed. After `max_attempts` of those without a new checkpoint the job fails.
    `hold`: hold the job for this reason. `fields`: other columns to set.
    """
    job.refresh_from_db()
    fields["failures"] = job.failures + (1 if counts else 0)
    if job.stop_requested == "cancel":
        finish_cancellation(job, actor)
    elif counts and fields["failures"] >= job.max_attempts:
        reason = f"Given up after {fields['failures']} attempts without progress. The last: {reason}"
        fail_job(job, actor, "infrastructure", reason, **fields)
    elif hold or job.hold_requested:
        reason = reason if hold else job.stop_reason
        apply_job_event(job, JobEvent.LEAVE_HELD, actor=actor, reason=reason, **fields)
    else:
        apply_job_event(job, JobEvent.LEAVE, actor=actor, reason=reason, **fields)


def finish_cancellation(job: Job, actor: str) -> None:
    """Cancel a leased job whose cancellation was requested."""
    apply_job_event(job, JobEvent.STOP, actor=actor, reason=job.stop_reason)
