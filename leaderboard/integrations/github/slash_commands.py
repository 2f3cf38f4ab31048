"""Slash commands in comments of pull requests: permissions, effects and answers.

A comment becomes an outbox message (`github.command:<pull request>:<comment>`). Its effects and its result are one
transaction, so that a process that dies does not repeat it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Any, NamedTuple

from django.contrib.auth.models import User
from django.db import transaction
from django.template.defaultfilters import pluralize

from leaderboard import actions, outbox, permissions, runs
from leaderboard.integrations.github import client, command_parser, sync
from leaderboard.integrations.github.command_parser import Command, InvalidCommand
from leaderboard.integrations.github.comments import ANSWER, enqueue_comment
from leaderboard.integrations.github.connection import NotConnectedError
from leaderboard.integrations.github.deliveries import as_number, as_text, get_nested
from leaderboard.models import Entry, OutboxMessage, PullRequest, Run, Track
from leaderboard.outbox import PermanentError, RetryLater
from leaderboard.run_states import RunError
from leaderboard.submissions import intake, policy, smoke_tests, stations
from leaderboard.submissions.intake import IntakeError
from scheduler import storage
from trainer.accounting.budget import Budget

COMMAND = "github.command"
MAX_WAITS = 5  # attempts for which a command waits until its pull request is synced
MIN_PART = 1 / 64
MAX_BODY_LENGTH = 4000


class RefusedError(ValueError):
    """The command cannot be run; the message is for its author."""


class NotAuthorizedError(RefusedError):
    """The author of the command lacks the permission."""


@dataclass(frozen=True)
class Commenter:
    """The author of a comment, with the permission in the main repository and the account on this site."""

    login: str
    permission: str
    user: User | None
    is_author: bool  # of the pull request
    at: datetime  # of the comment

    @property
    def name(self) -> str:
        return f"github:{self.login}"

    def is_allowed(self, what: str, entry: Entry) -> bool:
        return permissions.can_decide_on_github(self.permission, self.user, what, entry)


def handle_issue_comment(payload: dict[str, Any]) -> str | None:
    """Handle `issue_comment`. https://docs.github.com/en/webhooks/webhook-events-and-payloads#issue_comment"""
    if payload.get("action") != "created":
        return "Only new comments have commands."
    if not get_nested(payload, "issue", "pull_request"):
        return "It is a comment on an issue."
    if get_nested(payload, "comment", "user", "type") == "Bot":
        return "A bot wrote it."
    comment = payload.get("comment")
    return enqueue_commands(
        payload,
        number=as_number(get_nested(payload, "issue", "number"), 2**31),
        key=as_number(get_nested(comment, "id")),
        user=get_nested(comment, "user"),
        body=as_text(get_nested(comment, "body")),
        at=as_text(get_nested(comment, "created_at")),
    )


def handle_check_run(payload: dict[str, Any]) -> str | None:
    """A click on “Re-run” of one of the site's checks is a `/rerun`.

    https://docs.github.com/en/webhooks/webhook-events-and-payloads#check_run
    """
    external = as_text(get_nested(payload, "check_run", "external_id"))[:40]
    check_id = as_number(get_nested(payload, "check_run", "id"))
    if payload.get("action") != "rerequested" or not external.startswith("entry:"):
        return "It is no re-run of a check of this site."
    entry = Entry.objects.filter(pk=int(external[6:]) if external[6:].isdecimal() else 0).first()
    if entry is None or entry.pull_request is None:
        return "The entry of this check is unknown."
    completed_at = as_text(get_nested(payload, "check_run", "completed_at"))
    return enqueue_commands(
        payload,
        number=entry.pull_request.number,
        key=check_id and f"check-{check_id}-{completed_at}",  # once for each completion
        user=payload.get("sender"),
        body="/rerun",
        at=completed_at,
    )


def enqueue_commands(
    payload: Mapping[str, Any],
    *,
    number: int | None,
    key: int | str | None,
    user: Any,
    body: str,
    at: str,
) -> str | None:
    """Enqueue the commands of a comment, or return why there are none."""
    repository = as_text(get_nested(payload, "repository", "full_name"))
    if reason := sync.explain_foreign(repository, as_number(get_nested(payload, "repository", "id"))):
        return reason
    if not command_parser.parse_comment(body):
        return "It has no command."
    if number is None or key is None or sync.parse_time(at) is None:
        return "It lacks its place or time."
    pull = sync.get_pull_request(repository, number)
    author = {"login": as_text(get_nested(user, "login")), "person": as_number(get_nested(user, "id"))}
    request = {"pull": pull.pk, "comment": key, **author, "body": body[:MAX_BODY_LENGTH], "at": at}
    outbox.enqueue_once(COMMAND, f"{COMMAND}:{pull.pk}:{key}"[:160], request)
    if pull.seen_at is None:
        sync.enqueue_sync(pull)
    return None


def run_commands(message: OutboxMessage) -> Mapping[str, Any]:
    """Handle `github.command`."""
    request = message.payload
    pull = PullRequest.objects.get(pk=request["pull"])
    if not message.result:
        if not sync.is_synced(pull) and message.attempts < MAX_WAITS:
            raise RetryLater("The pull request is being synced.", timedelta(seconds=2))
        storage.store_release()  # outside of the transaction, since it may be slow
        commenter = identify_commenter(pull, request)
        commands = command_parser.parse_comment(request["body"])
        is_approval = any(isinstance(command, Command) and command.action == "approve" for command in commands)
        if is_approval and update_head(pull):
            raise RetryLater("After a push, the pull request is being synced.", timedelta(seconds=2))
        run_commands_once(message, pull, commenter, commands)
        enqueue_comment(pull)
    add_reaction(pull, message)
    return dict(message.result)


def identify_commenter(pull: PullRequest, request: Mapping[str, Any]) -> Commenter:
    """Return the commenter with the current permission on GitHub."""
    try:
        permission: str = client.get_client(pull.repository).get_permission(request["login"])
    except NotConnectedError:
        permission = "none"
    at = sync.parse_time(request["at"])
    assert at is not None, "checked by enqueue_commands"
    number = request["person"]
    return Commenter(
        request["login"],
        permission,
        user=permissions.find_github_user(number) if number else None,
        is_author=number is not None and number == pull.author_id,
        at=at,
    )


def update_head(pull: PullRequest) -> bool:
    shown = sync.fetch_pull_request(pull)
    return shown is not None and shown.head_sha != pull.head_sha and sync.update_pull_request(pull, shown)


def run_commands_once(
    message: OutboxMessage, pull: PullRequest, commenter: Commenter, commands: list[Command | InvalidCommand]
) -> None:
    """Run the commands of a comment and store the answers, in one transaction and only once."""
    with transaction.atomic():
        locked = OutboxMessage.objects.select_for_update().get(pk=message.pk)
        if not locked.result:
            answers = [run_command(pull, commenter, command) for command in commands]
            went = all(answer.outcome in (Outcome.DONE, Outcome.HELP) for answer in answers)
            locked.result = {"answers": [(answer.line, answer.message) for answer in answers], "went": went}
            OutboxMessage.objects.filter(pk=message.pk).update(result=locked.result)
            enqueue_answer(message, pull, answers)
    message.result = locked.result


class Outcome(StrEnum):
    """What became of a command. All but `DONE` are answered in a comment."""

    DONE = "done"
    HELP = "help"
    INVALID = "invalid"
    REFUSED = "refused"
    DENIED = "denied"  # the commenter may not give it


class Answer(NamedTuple):
    line: str
    message: str
    outcome: Outcome


def run_command(pull: PullRequest, commenter: Commenter, command: Command | InvalidCommand) -> Answer:
    if isinstance(command, InvalidCommand):
        return Answer(command.line, command.why, Outcome.INVALID)
    if command.action == "help":
        return Answer(command.line, "These commands exist, one a line.", Outcome.HELP)
    try:
        with transaction.atomic():
            return Answer(command.line, HANDLERS[command.action](pull, commenter, command), Outcome.DONE)
    except NotAuthorizedError as error:
        return Answer(command.line, str(error), Outcome.DENIED)
    except (RefusedError, IntakeError, RunError) as error:
        return Answer(command.line, str(error), Outcome.REFUSED)


def enqueue_answer(message: OutboxMessage, pull: PullRequest, answers: list[Answer]) -> None:
    shown = [answer for answer in answers if answer.outcome != Outcome.DONE]
    if not shown:
        return
    is_denied = all(answer.outcome == Outcome.DENIED for answer in shown)
    key = f"{ANSWER}:{pull.pk}:{message.payload['person']}" if is_denied else f"{ANSWER}:{message.payload['comment']}"
    payload = {
        **{name: message.payload[name] for name in ("pull", "comment", "login")},
        "answers": [(answer.line, answer.message) for answer in shown],
        "help": any(answer.outcome in (Outcome.HELP, Outcome.INVALID) for answer in shown),
    }
    outbox.enqueue_once(ANSWER, key[:160], payload)


def add_reaction(pull: PullRequest, message: OutboxMessage) -> None:
    comment = message.payload["comment"]
    if not isinstance(comment, int):
        return
    try:
        client.get_client(pull.repository).add_reaction(comment, "+1" if message.result["went"] else "confused")
    except PermanentError:
        return  # deleted, or no permission: the commands have run anyway


# --- each command ----------------------------------------------------------------------------------------------------


def list_head_entries(pull: PullRequest) -> list[Entry]:
    """Return the entries of the head commit that are not closed, the description's first."""
    found = pull.entries.filter(sha=pull.head_sha).exclude(state__in=[Entry.State.REJECTED, Entry.State.WITHDRAWN])
    entries = list(found.select_related("track__season", "smoke_job", "requested_by", "bundle").order_by("pk"))
    if not entries:
        raise RefusedError("This commit is not entered: the first comment of the train here says what is in the way.")
    return sorted(entries, key=lambda entry: entry.pk != pull.entry_id)


def list_allowed_entries(pull: PullRequest, commenter: Commenter, what: str, *, author: bool = False) -> list[Entry]:
    """Return the head's entries for which the commenter has the permission. Raise NotAuthorizedError if none."""
    entries = list_head_entries(pull)
    allowed = [entry for entry in entries if (author and commenter.is_author) or commenter.is_allowed(what, entry)]
    if not allowed:
        whom = "the author and maintainers" if author else "maintainers"
        raise NotAuthorizedError(f"Permission denied: this is for {whom} of this repository. Nothing has changed.")
    return allowed


def start_smoke_test(pull: PullRequest, commenter: Commenter, command: Command) -> str:
    entries = list_allowed_entries(pull, commenter, "run", author=True)
    queued = []
    for entry in entries:
        is_vouched = commenter.is_allowed("approve", entry)
        queued.append(smoke_tests.queue_smoke_test(entry, actor=commenter.name, is_vouched=is_vouched))
    if any(queued):
        return "The smoke test is queued."
    if any(smoke_tests.is_running(entry) for entry in entries):
        raise RefusedError("The smoke test is already running.")
    raise RefusedError("A maintainer starts the first smoke test of a new contributor.")


def add_track(pull: PullRequest, commenter: Commenter, command: Command) -> str:
    """Request another track; the next sync of the pull request enters it."""
    list_allowed_entries(pull, commenter, "run", author=True)
    track = Track.objects.filter(slug__iexact=command.word).first()
    if track is None:
        known = ", ".join(Track.objects.in_order().values_list("slug", flat=True))
        raise RefusedError(f"There is no track {command.word}: there are {known}.")
    row = PullRequest.objects.select_for_update().get(pk=pull.pk)
    also = row.fields.get("also", [])
    if track.slug in (row.fields.get("track"), *also):
        raise RefusedError(f"It is entered for {track.name} already.")
    PullRequest.objects.filter(pk=pull.pk).update(fields={**row.fields, "also": [*also, track.slug]})
    pull.refresh_from_db()
    sync.enqueue_sync(pull)
    return f"It is entered for {track.name}, too."


def run_hours(pull: PullRequest, commenter: Commenter, command: Command) -> str:
    entry = list_allowed_entries(pull, commenter, "run")[0]
    budget = get_budget_part(entry.track, command.number)
    run = runs.make_run(entry, entry.track, budget=budget, actor=commenter.name)
    if entry.state != Entry.State.APPROVED:
        return f"Run {run.pk} has a budget of {budget}; it waits for the approval of commit {entry.sha[:8]}."
    runs.queue_run(run, actor=commenter.name)
    return f"Run {run.pk} is queued with a budget of {budget}."


def get_budget_part(track: Track, hours: float) -> str:
    """Return the part of a track's budget that so many hours are; of other budgets, by its expected time."""
    whole = Budget.parse(track.budget)
    part = hours * 3600 / (whole.amount if whole.kind == "seconds" else track.expected_seconds)
    if not MIN_PART <= part < 1:
        expected = track.expected_seconds / 3600
        hint = f"ask for less, and for {expected * MIN_PART:.2g} h at least."
        raise RefusedError(f"{track.name} has {expected:.3g} h: {hint}")
    return str(whole.times(part))


def run_more_seeds(pull: PullRequest, commenter: Commenter, command: Command) -> str:
    entry = list_allowed_entries(pull, commenter, "run")[0]
    if entry.state != Entry.State.APPROVED:
        raise RefusedError(f"Commit {entry.sha[:8]} is not approved yet.")
    new_runs = runs.queue_more_seeds(entry, int(command.number), actor=commenter.name)
    return f"{len(new_runs)} more run{pluralize(new_runs)} queued: {', '.join(str(run.pk) for run in new_runs)}."


def cancel_entries(pull: PullRequest, commenter: Commenter, command: Command) -> str:
    """Cancel the unfinished runs of the head commit. Authors cannot cancel confirmation runs."""
    stopped = []
    reason = f"{commenter.login} cancelled it in the pull request."
    unfinished = Run.objects.filter(state__in=Run.UNFINISHED).select_related("job", "score_job")
    for entry in list_allowed_entries(pull, commenter, "cancel", author=True):
        if smoke_tests.is_running(entry):
            smoke_tests.cancel_smoke_test(entry, reason, commenter.name)
            stopped.append("the smoke test")
        own = {} if commenter.is_allowed("cancel", entry) else {"purpose": Run.Purpose.ENTRY}
        for run in unfinished.filter(entry=entry, **own):
            runs.cancel_run(run, reason, commenter.name)
            stopped.append(f"run {run.pk}")
    if not stopped:
        raise RefusedError("There is nothing to cancel.")
    return f"Cancelled: {', '.join(stopped)}. Running jobs end with the next heartbeat of their nodes."


def rerun_entries(pull: PullRequest, commenter: Commenter, command: Command) -> str:
    """Retry runs that the infrastructure failed, else run again with a new seed."""
    results = [rerun_entry(entry, commenter) for entry in list_allowed_entries(pull, commenter, "rerun", author=True)]
    if all(isinstance(one, RefusedError) for one in results):
        raise next(one for one in results if isinstance(one, RefusedError))
    return " ".join(one for one in results if isinstance(one, str))


def rerun_entry(entry: Entry, commenter: Commenter) -> str | RefusedError:
    if entry.state != Entry.State.APPROVED:
        return RefusedError(f"Commit {entry.sha[:8]} is not approved yet; `/train smoke` repeats the smoke test.")
    entry_runs = entry.runs.select_related("entry__bundle", "entry__requested_by", "track__season", "season", "job")
    broken = [run for run in entry_runs if actions.is_infrastructure_failure(run)]
    if broken:
        for run in broken:
            runs.retry_run(run, actor=commenter.name)
        return f"It goes on with its seed: {', '.join(f'run {run.pk}' for run in broken)}."
    last = entry_runs.filter(purpose=Run.Purpose.ENTRY).order_by("pk").last()
    if last is None:
        return RefusedError("There is no run to repeat yet.")
    if not last.is_over or runs.has_unfinished_run(last):
        return RefusedError("A run of it is under way: wait for its result first.")
    if runs.has_used_attempt(last) and not commenter.is_allowed("rerun", entry):
        # Choosing more seeds after seeing a result leads to more false records (docs/explanation/multiplier.md).
        return RefusedError(
            "It has a result, failed by itself, or used a tenth of its budget. Only maintainers can request more seeds."
        )
    if last.state == Run.State.FINISHED and last.part < 1 and not last.is_trial:
        whole = runs.make_run(entry, entry.track, actor=commenter.name)
        runs.queue_run(whole, actor=commenter.name)
        return f"Run {whole.pk} is queued with the whole budget."
    return f"Run {runs.rerun(last, actor=commenter.name).pk} is queued with a fresh seed."


def set_impact(pull: PullRequest, commenter: Commenter, command: Command) -> str:
    """Set the impact: the place within a priority, which follows from what a run is for (docs/explanation/queue.md)."""
    for entry in list_allowed_entries(pull, commenter, "priority"):
        intake.set_impact(entry, int(command.number), commenter.name)
    return f"The impact is {command.number:.0f}: within its queue, higher goes first."


def approve_entries(pull: PullRequest, commenter: Commenter, command: Command) -> str:
    """Approve the head commit, if that is what the maintainer looked at."""
    entries = list_allowed_entries(pull, commenter, "approve")
    head = pull.head_sha[:8]
    if command.word and not pull.head_sha.startswith(command.word):
        raise RefusedError(f"The newest commit is {head}, not {command.word[:8]}: look at it, then `/approve {head}`.")
    if not command.word and pull.head_at is not None and commenter.at <= pull.head_at:
        raise RefusedError(
            f"A push came after this comment, or at the same time: look at {head}, then `/approve {head}`."
        )
    for entry in entries:
        user = commenter.user if commenter.user and permissions.can_approve(commenter.user, entry) else None
        intake.approve_entry(entry, pull.head_sha, user, actor=commenter.name)
    return f"Commit {head} is approved."


def hold_entries(pull: PullRequest, commenter: Commenter, command: Command) -> str:
    entries = list_allowed_entries(pull, commenter, "approve")
    held = [policy.set_held(entry, is_held=True, actor=commenter.name) for entry in entries]
    if not any(held):
        raise RefusedError("It is held already.")
    return "It is held. The admin releases it."


def lift_entries(pull: PullRequest, commenter: Commenter, command: Command) -> str:
    entries = list_allowed_entries(pull, commenter, "approve")
    if commenter.user is None:
        raise NotAuthorizedError("Permission denied: connect your GitHub account with one on the site first.")
    lifted = [station for entry in entries for station in stations.lift_entry(entry, commenter.user)]
    return f"It is on {', '.join(station.track.name for station in lifted)}."


HANDLERS: dict[str, Callable[[PullRequest, Commenter, Command], str]] = {
    "smoke": start_smoke_test,
    "track": add_track,
    "hours": run_hours,
    "seeds": run_more_seeds,
    "cancel": cancel_entries,
    "rerun": rerun_entries,
    "priority": set_impact,
    "approve": approve_entries,
    "hold": hold_entries,
    "lift": lift_entries,
}
