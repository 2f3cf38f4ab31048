"""Outbox handlers for pull requests: the bot's comment, the checks and the answers, built from rows when sent.

Each handler first looks for what an interrupted attempt may have written, so that nothing is written twice.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from typing import Any

from django.db.models import F, Q
from django.utils import timezone

from leaderboard import outbox
from leaderboard.integrations.github import client, comment_text, entry_status
from leaderboard.integrations.github.client import Client
from leaderboard.integrations.github.connection import NotFoundError
from leaderboard.models import Confirmation, Entry, OutboxMessage, PullRequest, Ruling, Run
from scheduler.models import Event

COMMENT, CHECK, ANSWER, RULING = "github.comment", "github.check", "github.answer", "github.ruling"
MAX_COMMANDS = 20  # the last ones, for the comment
TARGET_KINDS = ("entry", "run", "job")


def enqueue_comment(pull: PullRequest) -> None:
    outbox.enqueue(COMMENT, f"{COMMENT}:{pull.pk}", {"pull": pull.pk})
    for entry in pull.entries.filter(sha=pull.head_sha):
        enqueue_check(entry)


def enqueue_check(entry: Entry, step: int = 0) -> None:
    outbox.enqueue(CHECK, f"{CHECK}:{entry.pk}", {"entry": entry.pk, "step": step})


def update_pull_requests(events: Sequence[Event]) -> None:
    ids = {kind: {event.target_id for event in events if event.target_kind == kind} for kind in TARGET_KINDS}
    entries = Entry.objects.filter(pull_request__isnull=False)
    changed = {
        *entries.filter(pk__in=ids["entry"]),
        *entries.filter(runs__in=ids["run"]),
        *entries.filter(runs__job__in=ids["job"]),
        *entries.filter(runs__score_job__in=ids["job"]),
        *entries.filter(duplicate_of__runs__in=ids["run"]),
        *entries.filter(smoke_job__in=ids["job"]),
    }
    for entry in sorted(changed, key=lambda entry: entry.pk):
        enqueue_check(entry)
    pulls = {entry.pull_request_id for entry in changed} | find_affected_pulls(ids["run"])
    for pull in PullRequest.objects.filter(pk__in=pulls).order_by("pk"):
        outbox.enqueue(COMMENT, f"{COMMENT}:{pull.pk}", {"pull": pull.pk})


def find_affected_pulls(runs: set[int]) -> set[int]:
    """Return the open pull requests whose comparisons change with these finished runs: of the baseline, or a record.

    Also one that was a record, since what takes it away is over before its event is read.
    """
    finished = Run.objects.filter(state=Run.State.FINISHED)
    records = Confirmation.objects.filter(outcome=Confirmation.Outcome.RECORD).values("entry")
    is_record = Q(trust=Run.Trust.RECORD) | Q(entry__in=records)
    references = finished.filter(Q(entry=F("season__baseline")) | is_record, pk__in=runs)
    tracks = references.values("track")
    affected = finished.filter(track__in=tracks, entry__pull_request__state=PullRequest.State.OPEN)
    return set(affected.values_list("entry__pull_request", flat=True))


def report_progress() -> None:
    """Update the progress of training runs, in steps, since progress has no events."""
    live = Run.objects.live().filter(state=Run.State.TRAINING, entry__pull_request__isnull=False)
    checks = OutboxMessage.objects.filter(key__in=[f"{CHECK}:{run.entry_id}" for run in live])
    reported = {message.key: message.payload.get("step") for message in checks}
    for run in live:
        step = int(run.fraction * entry_status.PROGRESS_STEPS)
        if step and reported.get(f"{CHECK}:{run.entry_id}") != step:
            enqueue_check(run.entry, step)
            pull = run.entry.pull_request_id
            outbox.enqueue(COMMENT, f"{COMMENT}:{pull}", {"pull": pull})


# --- handlers --------------------------------------------------------------------------------------------------------


def update_comment(message: OutboxMessage) -> Mapping[str, Any]:
    """Handle `github.comment`: create or update the bot's comment."""
    pull = PullRequest.objects.get(pk=message.payload["pull"])
    commands = OutboxMessage.objects.filter(key__startswith=f"github.command:{pull.pk}:").order_by("-pk")[:MAX_COMMANDS]
    body = comment_text.build_comment(pull, list(commands)[::-1], timezone.now())
    comment_id: int | None = message.result.get("comment")
    if not body and comment_id is None:
        return dict(message.result)
    body = body or f"{comment_text.get_comment_mark(pull)}\n\nThis pull request asks for no run.\n"
    if message.result.get("digest") == compute_digest(body):
        return dict(message.result)
    github = client.get_client(pull.repository)
    comment_id = comment_id or find_own_comment(github, pull.number, comment_text.get_comment_mark(pull))
    return {"comment": write_comment(github, pull.number, comment_id, body), "digest": compute_digest(body)}


def write_comment(github: Client, number: int, comment_id: int | None, body: str) -> int:
    """Update the comment, or create it if it is missing or deleted; return its id."""
    if comment_id is not None:
        try:
            github.edit_comment(comment_id, body)
            return comment_id
        except NotFoundError:  # it was deleted
            pass
    return github.create_comment(number, body)


def find_own_comment(github: Client, number: int, mark: str) -> int | None:
    """Return the id of the bot's comment that begins with this mark."""
    comments = github.list_comments(number)
    return next((comment.id for comment in comments if comment.is_own and comment.body.startswith(mark)), None)


def compute_digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:32]


def update_check(message: OutboxMessage) -> Mapping[str, Any]:
    """Handle `github.check`: create or update the check of an entry's commit."""
    entry = Entry.objects.select_related("track__season", "smoke_job", "pull_request").get(pk=message.payload["entry"])
    if entry.pull_request is None:
        return dict(message.result)
    state = entry_status.get_entry_status(entry, timezone.now())
    summary = comment_text.build_check_summary(state)
    digest = compute_digest(f"{state} {summary}")
    if message.result.get("digest") == digest:
        return dict(message.result)
    status = "completed" if state.conclusion else "in_progress" if state.is_started else "queued"
    check = client.get_client(entry.pull_request.repository).update_check(
        entry.sha,
        comment_text.get_check_name(entry),
        status=status,  # type: ignore[arg-type]
        conclusion=state.conclusion,
        title=state.title,
        summary=summary,
        url=comment_text.build_url(entry.get_absolute_url()),
        external_id=f"entry:{entry.pk}",
        check_id=message.result.get("check"),
    )
    return {"check": check, "digest": digest}


def post_answer(message: OutboxMessage) -> Mapping[str, Any]:
    """Handle `github.answer`: answer a comment and hide older answers."""
    payload = message.payload
    pull = PullRequest.objects.get(pk=payload["pull"])
    github = client.get_client(pull.repository)
    mark = comment_text.get_answer_mark(payload["comment"])
    comment_id = find_own_comment(github, pull.number, mark)
    if comment_id is None:
        comment, login, answers = (payload[name] for name in ("comment", "login", "answers"))
        body = comment_text.build_answer(comment, login, answers, with_help=payload["help"])
        comment_id = github.create_comment(pull.number, body)
    for comment in github.list_comments(pull.number):
        if comment.is_own and comment.body.startswith(comment_text.ANSWER) and comment.id < comment_id:
            github.minimize_comment(comment.node_id)
    return {"comment": comment_id}


def post_ruling(message: OutboxMessage) -> Mapping[str, Any]:
    """Handle `github.ruling`: create, or update, the one comment about a ruling."""
    pull = PullRequest.objects.get(pk=message.payload["pull"])
    ruling = Ruling.objects.get(pk=message.payload["ruling"])
    mark = f"<!-- dailytrain:ruling:{ruling.pk} -->"
    is_cap = ruling.effect == Ruling.Effect.CAP
    concerned = ruling.find_entries() if is_cap and not ruling.revoked_at else Entry.objects.filter(ruling=ruling)
    entries = list(concerned.filter(pull_request=pull))
    body = comment_text.render_markdown("ruling.md", {"mark": mark, "ruling": ruling, "entries": entries})
    github = client.get_client(pull.repository)
    comment_id = message.result.get("comment") or find_own_comment(github, pull.number, mark)
    return {"comment": write_comment(github, pull.number, comment_id, body)}
