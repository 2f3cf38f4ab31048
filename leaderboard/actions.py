"""What the author of an entry and the maintainers ask of a run: on its page, and in the admin."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from django.contrib.auth.models import AbstractBaseUser, AnonymousUser
from django.db import transaction
from django.db.models import F

from leaderboard import runs
from leaderboard.models import Entry, Run
from leaderboard.publishing import publications
from leaderboard.runs import RunError
from scheduler import transitions
from scheduler.models import Job

Asker = AbstractBaseUser | AnonymousUser
QUEUE = (Run.State.QUEUED, Run.State.TRAINING, Run.State.PAUSED)
"""While it is one of these a node works on its training, or is to."""


@dataclass(frozen=True)
class Wish:
    """Something that can be asked of a run."""

    name: str
    """Of the button, in the address."""
    label: str
    does: str
    """What will have happened, for the page that comes after."""
    possible: Callable[[Run], bool]
    act: Callable[..., object]
    """Called with the run and the name of who asks, and with what was chosen where there is a choice."""
    of_maintainers: bool = False
    """Not the author's to ask."""
    of_steps: bool = False
    """One of the run's kept checkpoints is to be chosen (`runs.rewinds`)."""


def may_ask(user: Asker, run: Run) -> bool:
    """Whether this is a maintainer, or the person who entered it, of a run that was not made to check him."""
    return is_maintainer(user) or (run.purpose == Run.Purpose.ENTRY and is_author(user, run))


def is_author(user: Asker, run: Run) -> bool:
    """Whether this person entered it. An author's name in a commit is no proof."""
    return user.is_authenticated and user.is_active and user.pk == run.entry.requested_by_id


def is_maintainer(user: Asker) -> bool:
    return user.has_perm("leaderboard.change_run")  # type: ignore[union-attr]


def possible(user: Asker, run: Run) -> list[Wish]:
    """Return what this user can ask of the run now. The run should have its entry, track and job."""
    if not may_ask(user, run):
        return []
    # Who looks at a result and then asks for more seeds gets more false records (docs/multiplier.md).
    not_again = run.state == Run.State.FINISHED and not is_maintainer(user)
    found = [wish for wish in WISHES.values() if wish.possible(run) and not (not_again and wish.name == "again")]
    return [wish for wish in found if not wish.of_maintainers or is_maintainer(user)]


def ask(run: Run, wish: str, user: Asker, step: int | None = None) -> str:
    """Do it, and return what has happened in a sentence; raise RunError where it cannot be, just now."""
    chosen = WISHES[wish]
    if chosen not in possible(user, run):
        raise RunError(f"Run {run.pk} is {run.state}: that cannot be asked of it now.")
    if not chosen.of_steps:
        chosen.act(run, user.get_username())
    elif step is None:
        raise RunError(f"{chosen.label}: say which step.")
    else:
        chosen.act(run, user.get_username(), step)
    return chosen.does


# --- each wish -------------------------------------------------------------------------------------------------------


def is_held(run: Run) -> bool:
    return run.job is not None and (run.job.state == Job.State.HELD or run.job.hold_requested)


def hold(run: Run, actor: str) -> None:
    """Keep a run back; one that trains is handed back with a checkpoint first."""
    assert run.job is not None, "what is in the queue has a job"
    reason = f"{actor} holds it back."
    with transaction.atomic():
        if not transitions.hold_job(run.job, actor, reason):
            raise RunError(f"Run {run.pk} is {run.state}: there is nothing to hold.")
        if run.job.state == Job.State.HELD:
            say(run, reason)


def let_go(run: Run, actor: str) -> None:
    """Let a held run take its place in the queue again."""
    assert run.job is not None, "what is held has a job"
    with transaction.atomic():
        if not transitions.queue_job(run.job, actor):
            raise RunError(f"Run {run.pk} is not held any more, or its node has yet to hand it back.")
        say(run, "")


def say(run: Run, reason: str) -> None:
    Run.objects.filter(pk=run.pk).update(reason=reason, revision=F("revision") + 1)
    run.refresh_from_db(fields=["reason", "revision"])


def cancel(run: Run, actor: str) -> None:
    runs.cancel(run, f"{actor} cancelled it.", actor)


def go_on(run: Run, actor: str) -> None:
    runs.retry(run, actor=actor)


def again(run: Run, actor: str) -> None:
    """Queue a run of the same entry with a new seed; one at a time."""
    if has_another(run):
        raise RunError("Another run of this entry is under way: wait for its result first.")
    runs.rerun(run, actor=actor)


def publish(run: Run, actor: str) -> None:
    publications.publish(run, f"{actor} had it published.", actor)


def rewind(run: Run, actor: str, step: int) -> None:
    runs.rewind(run, step, actor=actor)


def may_be_rewound(run: Run) -> bool:
    return run.job_id is not None and run.entry.kind != Entry.Kind.NOTEBOOK and bool(runs.rewinds(run))


def has_another(run: Run) -> bool:
    return Run.objects.filter(entry=run.entry_id, budget=run.budget, state__in=Run.UNFINISHED).exists()


def is_ours_to_retry(run: Run) -> bool:
    return run.state == Run.State.FAILED and run.cause == "infrastructure"


WISHES = {
    wish.name: wish
    for wish in (
        Wish("hold", "Hold", "It is held back.", lambda run: run.state in QUEUE and not is_held(run), hold),
        Wish(
            "go-on",
            "Let it go on",
            "It is in the queue again.",
            lambda run: run.state in QUEUE and is_held(run),
            let_go,
        ),
        Wish("retry", "Go on with this seed", "It is in the queue again.", is_ours_to_retry, go_on),
        Wish("again", "Run again, new seed", "Another run is queued.", lambda run: run.is_over, again),
        Wish(
            "rewind",
            "Rewind to step",
            "A new run goes on from there; the timeline names it.",
            may_be_rewound,
            rewind,
            of_maintainers=True,
            of_steps=True,
        ),
        Wish(
            "publish",
            "Publish on the Hub",
            "It is on its way to the Hub.",
            publications.is_publishable,
            publish,
            of_maintainers=True,
        ),
        Wish(
            "cancel",
            "Cancel",
            "It is cancelled as soon as its node has heard of it.",
            lambda run: not run.is_over,
            cancel,
        ),
    )
}
