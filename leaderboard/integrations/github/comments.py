"""What the site says in a pull request: the one comment, the checks, the answers. Worked out from rows when it is said.

Each handler looks first whether the thing is there, so that dying between doing and noting doubles nothing.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from typing import Any

from django.utils import timezone

from leaderboard import outbox
from leaderboard.integrations.github import client, comment_text, entry_status
from leaderboard.integrations.github.client import Client, NotFoundError
from leaderboard.models import Effect, Entry, PullRequest, Run
from scheduler.models import Event

COMMENT, CHECK, ANSWER = "github.comment", "github.check", "github.answer"
COMMANDS = 20
"""So many of the last commands are looked at for the comment."""


# --- when something has changed --------------------------------------------------------------------------------------


def enqueue_comment(pull: PullRequest) -> None:
    """Have the comment and the head's checks say how things are now."""
    outbox.enqueue(COMMENT, f"{COMMENT}:{pull.pk}", {"pull": pull.pk})
    for entry in pull.entries.filter(sha=pull.head_sha):
        enqueue_check(entry)


def enqueue_check(entry: Entry, step: int = 0) -> None:
    outbox.enqueue(CHECK, f"{CHECK}:{entry.pk}", {"entry": entry.pk, "step": step})


def handle_events(events: Sequence[Event]) -> None:
    """Listener of `announcing`: tell the pull requests that something has happened to."""
    about = {kind: {event.target_id for event in events if event.target_kind == kind} for kind in KINDS}
    entries = Entry.objects.filter(pull_request__isnull=False)
    changed = {
        *entries.filter(pk__in=about["entry"]),
        *entries.filter(runs__in=about["run"]),
        *entries.filter(runs__job__in=about["job"]),
        *entries.filter(runs__score_job__in=about["job"]),
        *entries.filter(smoke_job__in=about["job"]),
    }
    for entry in sorted(changed, key=lambda entry: entry.pk):
        enqueue_check(entry)
    pulls = {entry.pull_request_id for entry in changed} | find_affected_pulls(about["run"])
    for pull in PullRequest.objects.filter(pk__in=pulls).order_by("pk"):
        outbox.enqueue(COMMENT, f"{COMMENT}:{pull.pk}", {"pull": pull.pk})


KINDS = ("entry", "run", "job")


def find_affected_pulls(runs: set[int]) -> set[int]:
    """Return the open pull requests whose verdicts a judged run may have moved: those of its track."""
    judged = Run.objects.filter(pk__in=runs, state=Run.State.FINISHED)
    theirs = Run.objects.filter(track__in=judged.values("track"), state=Run.State.FINISHED)
    open_ones = theirs.filter(entry__pull_request__state=PullRequest.State.OPEN)
    return set(open_ones.values_list("entry__pull_request", flat=True))


def report_progress() -> None:
    """Tell how far trainings are, in steps: no event says so."""
    live = Run.objects.live().filter(state=Run.State.TRAINING, entry__pull_request__isnull=False)
    told = {effect.key: effect.payload.get("step") for effect in Effect.objects.filter(
        key__in=[f"{CHECK}:{run.entry_id}" for run in live])}  # fmt: skip
    for run in live:
        step = int(run.fraction * entry_status.PROGRESS_STEPS)
        if step and told.get(f"{CHECK}:{run.entry_id}") != step:
            enqueue_check(run.entry, step)
            pull = run.entry.pull_request_id
            outbox.enqueue(COMMENT, f"{COMMENT}:{pull}", {"pull": pull})


# --- handlers --------------------------------------------------------------------------------------------------------


def update_comment(effect: Effect) -> Mapping[str, Any]:
    """Handler of the effect `github.comment`: make or rewrite the one comment."""
    pull = PullRequest.objects.get(pk=effect.payload["pull"])
    said = Effect.objects.filter(key__startswith=f"github.command:{pull.pk}:").order_by("-pk")[:COMMANDS]
    body = comment_text.build_comment(pull, list(said)[::-1], timezone.now())
    there: int | None = effect.result.get("comment")
    if not body and there is None:
        return dict(effect.result)
    body = body or f"{comment_text.get_comment_mark(pull)}\n\nThis pull request asks for no run.\n"
    if effect.result.get("digest") == compute_digest(body):
        return dict(effect.result)
    github = client.get_client(pull.repository)
    there = there or find_own_comment(github, pull.number, comment_text.get_comment_mark(pull))
    return {"comment": write_comment(github, pull.number, there, body), "digest": compute_digest(body)}


def write_comment(github: Client, number: int, there: int | None, body: str) -> int:
    """Rewrite a comment, or write it where it is not there, or not any more; return its id."""
    if there is not None:
        try:
            github.edit_comment(there, body)
        except NotFoundError:  # somebody deleted it
            pass
        else:
            return there
    return github.comment(number, body)


def find_own_comment(github: Client, number: int, mark: str) -> int | None:
    """Return the id of our comment that begins with this mark."""
    found = (one.id for one in github.comments(number) if one.is_ours and one.body.startswith(mark))
    return next(found, None)


def compute_digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:32]


def update_check(effect: Effect) -> Mapping[str, Any]:
    """Handler of the effect `github.check`: make or bring up to date the check of an entry's commit."""
    entry = Entry.objects.select_related("track__season", "smoke_job", "pull_request").get(pk=effect.payload["entry"])
    if entry.pull_request is None:
        return dict(effect.result)
    state = entry_status.get_entry_status(entry, timezone.now())
    summary = comment_text.build_check_summary(state)
    said = compute_digest(f"{state} {summary}")
    if effect.result.get("digest") == said:
        return dict(effect.result)
    status = "completed" if state.conclusion else "in_progress" if state.begun else "queued"
    known = client.get_client(entry.pull_request.repository).check(
        entry.sha,
        comment_text.get_check_name(entry),
        status=status,  # type: ignore[arg-type]
        conclusion=state.conclusion,
        title=state.title,
        summary=summary,
        url=comment_text.build_url(entry.get_absolute_url()),
        external_id=f"entry:{entry.pk}",
        known=effect.result.get("check"),
    )
    return {"check": known, "digest": said}


def post_answer(effect: Effect) -> Mapping[str, Any]:
    """Handler of the effect `github.answer`: answer a comment, and fold the answers before."""
    asked = effect.payload
    pull = PullRequest.objects.get(pk=asked["pull"])
    github = client.get_client(pull.repository)
    mark = comment_text.get_answer_mark(asked["comment"])
    there = find_own_comment(github, pull.number, mark)
    if there is None:
        body = comment_text.build_answer(asked["comment"], asked["login"], asked["answers"], with_help=asked["help"])
        there = github.comment(pull.number, body)
    for old in github.comments(pull.number):
        if old.is_ours and old.body.startswith(comment_text.ANSWER) and old.id < there:
            github.minimise(old.node_id)
    return {"comment": there}
