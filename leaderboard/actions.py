"""Actions on a run that its author and the maintainers have: on the run's page and in the admin."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from django.contrib.auth.models import AbstractBaseUser, AnonymousUser
from django.db import transaction
from django.db.models import F

from leaderboard import run_jobs, runs
from leaderboard.models import Entry, Run
from leaderboard.publishing import publications
from leaderboard.run_states import RunError
from leaderboard.submissions import policy
from scheduler import failure_reports, transitions
from scheduler.models import Job
from scheduler.transitions import StateError

Requester = AbstractBaseUser | AnonymousUser
IN_QUEUE = (Run.State.QUEUED, Run.State.TRAINING, Run.State.PAUSED)
"""The run has a training job that is not over."""


@dataclass(frozen=True)
class RunAction:
    """A button on the page of a run."""

    name: str
    label: str
    message: str
    is_possible: Callable[[Run], bool]
    perform: Callable[..., object]
    """Called with the run, the requester's name and, if `needs_step`, the step. Returns a run that it makes."""
    for_maintainers: bool = False
    needs_step: bool = False
    """The requester chooses one of the run's checkpoints (`runs.list_rewind_steps`)."""


def is_author(user: Requester, run: Run) -> bool:
    """Return whether the user entered the run's entry; runs that check an entry have no author."""
    is_signed_in = user.is_authenticated and user.is_active
    return is_signed_in and run.purpose == Run.Purpose.ENTRY and user.pk == run.entry.requested_by_id


def list_run_actions(user: Requester, run: Run, *, is_maintainer: bool) -> list[RunAction]:
    """Return the actions that the user has on the run now. `is_maintainer` includes the second step of sign-in."""
    if not is_maintainer and not is_author(user, run):
        return []
    found = [action for action in RUN_ACTIONS.values() if action.is_possible(run)]
    if is_maintainer:
        return found
    # Authors who ask for more seeds after they saw a result get more false records (docs/explanation/multiplier.md).
    hidden = ("again",) if runs.has_used_attempt(run) else ()
    return [action for action in found if not action.for_maintainers and action.name not in hidden]


def perform_run_action(run: Run, name: str, user: Requester, step: int | None = None, *, is_maintainer: bool) -> Run:
    """Perform an action and return the run that it made, or the same one. Raises RunError where it is not possible."""
    action = RUN_ACTIONS[name]
    if action not in list_run_actions(user, run, is_maintainer=is_maintainer):
        raise RunError(f"Run {run.pk} is {run.state}: this action is not possible now.")
    if action.needs_step and step is None:
        raise RunError(f"{action.label}: choose a step.")
    result = action.perform(run, user.get_username(), *([step] if action.needs_step else ()))
    return result if isinstance(result, Run) else run


# --- each action ------------------------------------------------------------------------------------------------------


def is_held(run: Run) -> bool:
    return run.job is not None and (run.job.state == Job.State.HELD or run.job.hold_requested)


def hold_run(run: Run, actor: str) -> None:
    """Hold a run. A run that trains is handed back with a checkpoint first."""
    assert run.job is not None, "what is in the queue has a job"
    reason = f"Held by {actor}."
    with transaction.atomic():
        if not transitions.hold_job(run.job, actor, reason):
            raise RunError(f"Run {run.pk} is {run.state}: there is nothing to hold.")
        if run.job.state == Job.State.HELD:
            set_reason(run, reason)


def unhold_run(run: Run, actor: str) -> None:
    assert run.job is not None, "a held run has a job"
    with transaction.atomic():
        try:
            transitions.queue_job(run.job, actor)
        except StateError:
            raise RunError(f"Run {run.pk} is no longer held, or its node has not handed it back yet.") from None
        if not run.is_swarm:
            Job.objects.filter(pk=run.job.pk).update(
                **run_jobs.get_limit_columns(run)
            )  # the track's may have been raised
        set_reason(run, "")


@transaction.atomic
def let_go_on(run: Run, actor: str) -> None:
    runs.let_go_on(run, actor=actor)
    policy.charge_hours(run)


def readmit_nodes(run: Run, actor: str) -> None:
    assert run.job is not None, "what is in the queue has a job"
    failure_reports.lift_exclusions(run.job, actor)


def set_reason(run: Run, reason: str) -> None:
    Run.objects.filter(pk=run.pk).update(reason=reason, revision=F("revision") + 1)
    run.refresh_from_db(fields=["reason", "revision"])


def can_rewind(run: Run) -> bool:
    return run.job_id is not None and run.entry.kind != Entry.Kind.NOTEBOOK and bool(runs.list_rewind_steps(run))


def is_infrastructure_failure(run: Run) -> bool:
    has_failed = run.state == Run.State.FAILED and run.cause == "infrastructure"
    return has_failed and run.entry.state == Entry.State.APPROVED


RUN_ACTIONS = {
    action.name: action
    for action in (
        RunAction("hold", "Hold", "The run is held.", lambda run: run.state in IN_QUEUE and not is_held(run), hold_run),
        RunAction(
            "resume",
            "Resume",
            "The run is queued again.",
            lambda run: run.state in IN_QUEUE and is_held(run),
            unhold_run,
        ),
        RunAction(
            "readmit",
            "Allow the nodes that failed it",
            "These nodes may try the run again.",
            lambda run: run.state in IN_QUEUE and run.job is not None and failure_reports.has_exclusions(run.job),
            readmit_nodes,
            for_maintainers=True,
        ),
        RunAction(
            "retry",
            "Retry with this seed",
            "The run is queued again.",
            is_infrastructure_failure,
            lambda run, actor: runs.retry_run(run, actor=actor),
        ),
        RunAction(
            "go-on",
            "Let it go on",
            "The run is queued again, and is not stopped again.",
            lambda run: run.state == Run.State.STOPPED and run.entry.state == Entry.State.APPROVED,
            let_go_on,
            for_maintainers=True,
        ),
        RunAction(
            "again",
            "Run again, new seed",
            "This run is queued.",
            lambda run: run.is_over,
            lambda run, actor: runs.rerun(run, actor=actor),
        ),
        RunAction(
            "rewind",
            "Rewind to step",
            "This new run resumes from there.",
            can_rewind,
            lambda run, actor, step: runs.rewind_run(run, step, actor=actor),
            for_maintainers=True,
            needs_step=True,
        ),
        RunAction(
            "publish",
            "Publish on the Hub",
            "The upload to the Hub is queued.",
            publications.is_publishable,
            lambda run, actor: publications.publish_run(run, f"Published by {actor}.", actor),
            for_maintainers=True,
        ),
        RunAction(
            "cancel",
            "Cancel",
            "The run is cancelled as soon as its node has received the request.",
            lambda run: not run.is_over,
            lambda run, actor: runs.cancel_run(run, f"Cancelled by {actor}.", actor),
        ),
    )
}
