"""A run's state machine: one table, and the one function that applies an event to a run and its jobs.

`docs/generate.py` draws the table. What a node reports changes its job first (`scheduler.transitions`); the handler of
the job's kind then applies the event to the run in the same transaction, so that both change or neither does.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from django.db import transaction
from django.db.models import F, TextChoices
from django.utils import timezone

from leaderboard.models import Run
from leaderboard.recomputation import request_recomputation
from scheduler import transitions
from scheduler.transitions import JobEvent, StateError

State = Run.State
COUNTS_FROM = 0.1
"""An attempt that a person ended counts if it used more than this share of its budget."""


class RunError(ValueError):
    """The run cannot be changed as requested; the message is for the user."""


class RunEvent(TextChoices):
    QUEUE = "queue", "approved, and nothing is missing"
    RECHECK = "recheck", "its graph no longer fits the season"
    TAKE = "take", "a node takes its job"
    LEAVE = "leave", "its node hands the job back or is lost"
    CONTINUE = "continue", "a part of a notebook ended, another follows"
    TRAIN = "train", "trained to the end"
    COMPLETE = "complete", "a notebook ran to its last cell"
    SCORE = "score", "scored on a trusted node"
    DROP = "drop", "its last checkpoint is unusable"
    FAIL = "fail", "the model or the infrastructure failed"
    CANCEL = "cancel", "a person or the site ended it"
    STOP = "stop", "its node handed it back, since it is behind"
    GO_ON = "go on", "a maintainer lets a stopped run go on"
    TRACE_AGAIN = "trace again", "retried before it had a graph"
    TRAIN_AGAIN = "train again", "retried with its seed"
    SCORE_AGAIN = "score again", "retried after its training"


def keep_jobs(run: Run, actor: str, message: str) -> None:
    pass


def cancel_job(run: Run, actor: str, message: str) -> None:
    """Cancel its job, unless a node has taken it."""
    assert run.job is not None, "a queued run has a job"
    transitions.apply_job_event(run.job, JobEvent.RECALL, actor=actor, reason=message)


def queue_job_again(run: Run, actor: str, message: str) -> None:
    """Queue its training job again, which has ended. It resumes from its last checkpoint."""
    assert run.job is not None, "a run that was trained has a job"
    transitions.retry_job(run.job, actor)


@dataclass(frozen=True)
class Transition:
    since: tuple[State, ...]
    to: State
    change_jobs: Callable[[Run, str, str], None] = keep_jobs
    """Changes its jobs, or raises StateError. A node's report has changed its job before."""
    new_job: str = ""
    """Column of a job that the event brings, unsaved."""


WHAT_JOBS_DO = {keep_jobs: "", cancel_job: "its job is cancelled", queue_job_again: "its job is queued again"}
IN_TRAINING = (State.QUEUED, State.TRAINING, State.PAUSED)
BEFORE_END = (State.WAITING, *IN_TRAINING, State.SCORING)
TRANSITIONS: Mapping[RunEvent, Transition] = {
    RunEvent.QUEUE: Transition((State.WAITING,), State.QUEUED, new_job="job"),
    RunEvent.RECHECK: Transition((State.QUEUED,), State.WAITING, cancel_job),
    RunEvent.TAKE: Transition((State.QUEUED, State.PAUSED), State.TRAINING),
    RunEvent.LEAVE: Transition((State.TRAINING,), State.PAUSED),
    RunEvent.CONTINUE: Transition((State.TRAINING,), State.QUEUED, new_job="job"),
    RunEvent.TRAIN: Transition((State.TRAINING,), State.SCORING, new_job="score_job"),
    RunEvent.COMPLETE: Transition((State.TRAINING,), State.FINISHED),
    RunEvent.SCORE: Transition((State.SCORING,), State.FINISHED),
    RunEvent.DROP: Transition((State.SCORING,), State.PAUSED, queue_job_again),
    RunEvent.FAIL: Transition(BEFORE_END, State.FAILED),
    RunEvent.CANCEL: Transition(BEFORE_END, State.CANCELLED),
    RunEvent.STOP: Transition((State.TRAINING,), State.STOPPED, cancel_job),
    RunEvent.GO_ON: Transition((State.STOPPED,), State.QUEUED, queue_job_again),
    RunEvent.TRACE_AGAIN: Transition((State.FAILED,), State.WAITING),
    RunEvent.TRAIN_AGAIN: Transition((State.FAILED,), State.QUEUED, queue_job_again),
    RunEvent.SCORE_AGAIN: Transition((State.FAILED,), State.SCORING, new_job="score_job"),
}


@transaction.atomic
def apply_event(run: Run, event: RunEvent, *, actor: str, message: str, **fields: Any) -> None:
    """Change a run and its jobs by an event, and record the message.

    `fields`: other columns of the run. Raises RunError, and changes nothing, where the run's state or that of its job
    does not allow the event.
    """
    step = TRANSITIONS[event]
    if step.to in (State.FINISHED, *Run.WITHOUT_RESULT):
        fields |= {"finished_at": timezone.now(), "counts": is_attempt(run, event, fields.get("cause", ""))}
    elif {State.FAILED, State.STOPPED} & {*step.since}:
        fields |= {"cause": "", "finished_at": None, "counts": False, "is_behind": False}
    if step.new_job:
        fields[step.new_job].save()
    fields = {"reason": "", **fields, "revision": F("revision") + 1}
    try:
        step.change_jobs(run, actor, message)
    except StateError as error:
        raise RunError(str(error)) from error
    if not transitions.transition(run, step.to, since=step.since, actor=actor, message=message, **fields):
        raise RunError(f"Run {run.pk} is {run.state}. So this is not possible: {event.label}.")
    if step.to == State.FINISHED:
        request_recomputation(run.track_id)


def is_attempt(run: Run, event: RunEvent, cause: str) -> bool:
    """Return whether a run's end uses up an attempt of its entry: all that start count, except what machines broke.

    A model that fails counts from its first step on: it could choose its seed by a NaN of its own.
    """
    if event in (RunEvent.SCORE, RunEvent.COMPLETE) or (cause == "model" and run.state != State.WAITING):
        return True
    return cause != "infrastructure" and run.fraction > COUNTS_FROM
