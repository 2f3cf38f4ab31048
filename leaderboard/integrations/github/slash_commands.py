"""Comments that ask for something: who may, what then happens, and what is answered. Each comment once.

A comment becomes an effect (`github.command:<pull request>:<comment>`). What it does and the note that it is done are
one transaction, so a process that dies over it does it not at all or not again.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from django.contrib.auth.models import User
from django.db import transaction

from leaderboard import actions, outbox, permissions, runs
from leaderboard.integrations.github import client, command_parser, sync
from leaderboard.integrations.github.command_parser import Command, InvalidCommand
from leaderboard.integrations.github.comments import ANSWER, enqueue_comment
from leaderboard.integrations.github.deliveries import as_text, get_nested
from leaderboard.job_handlers import smoke_tests
from leaderboard.models import Effect, Entry, PullRequest, Run, Track
from leaderboard.outbox import PermanentError, RetryLater
from leaderboard.runs import RunError
from leaderboard.submissions import intake
from leaderboard.submissions.intake import IntakeError
from scheduler import storage
from trainer.accounting.budget import Budget

COMMAND = "github.command"
MAX_WAITS = 5
"""Attempts for which a command waits until its pull request has been followed."""
MIN_PART = 1 / 64
MAX_BODY_LENGTH = 4000


class RefusedError(ValueError):
    """It cannot be done; the message is a sentence for whoever asked."""


class NotAuthorizedError(RefusedError):
    """This person may not ask for it."""


@dataclass(frozen=True)
class Commenter:
    """Who wrote a comment, and what he may do."""

    login: str
    permission: str
    """On the main repository."""
    user: User | None
    """Whom the site knows him as."""
    is_author: bool
    """Of the pull request."""
    at: datetime
    """When he wrote it."""

    @property
    def name(self) -> str:
        return f"github:{self.login}"

    def may(self, what: str, entry: Entry) -> bool:
        return permissions.can_decide_on_github(self.permission, self.user, what, entry)


# --- what GitHub tells -----------------------------------------------------------------------------------------------


def handle_issue_comment(payload: dict[str, Any], installation: int | None) -> str | None:
    """Any `issue_comment` delivery. https://docs.github.com/en/webhooks/webhook-events-and-payloads#issue_comment"""
    if payload.get("action") != "created":
        return "Only a new comment asks for something."
    if not get_nested(payload, "issue", "pull_request"):
        return "It is a comment of an issue."
    if get_nested(payload, "comment", "user", "type") == "Bot":
        return "A program wrote it."
    return enqueue_commands(
        payload,
        installation,
        number=get_nested(payload, "issue", "number"),
        key=get_nested(payload, "comment", "id"),
        who=get_nested(payload, "comment", "user"),
        body=as_text(get_nested(payload, "comment", "body")),
        at=as_text(get_nested(payload, "comment", "created_at")),
    )


def handle_check_run(payload: dict[str, Any], installation: int | None) -> str | None:
    """A click on “Re-run” at one of our checks is a `/rerun`.

    https://docs.github.com/en/webhooks/webhook-events-and-payloads#check_run
    """
    external = as_text(get_nested(payload, "check_run", "external_id"))
    if payload.get("action") != "rerequested" or not external.startswith("entry:"):
        return "It asks for nothing of ours."
    entry = Entry.objects.filter(pk=int(external[6:]) if external[6:].isdecimal() else 0).first()
    if entry is None or entry.pull_request is None:
        return "The entry of this check is not known."
    # Each time it was completed it can be asked for once more.
    done = as_text(get_nested(payload, "check_run", "completed_at"))
    return enqueue_commands(
        payload,
        installation,
        number=entry.pull_request.number,
        key=f"check-{get_nested(payload, 'check_run', 'id')}-{done}",
        who=payload.get("sender"),
        body="/rerun",
        at=done,
    )


def enqueue_commands(
    payload: Mapping[str, Any], installation: int | None, *, number: Any, key: Any, who: Any, body: str, at: str
) -> str | None:
    """Note what a comment asks for; return why it asks for nothing."""
    repository = as_text(get_nested(payload, "repository", "full_name"))
    who = who if isinstance(who, Mapping) else {}
    if reason := sync.explain_foreign(repository):
        return reason
    if not command_parser.parse_comment(body):
        return "It has no command for us."
    if not isinstance(number, int) or key is None or sync.parse_time(at) is None:
        return "It does not say where, or when, it was written."
    pull = sync.get_pull_request(repository, number, installation)
    wish = {
        "pull": pull.pk,
        "comment": key,
        "login": as_text(get_nested(who, "login")),
        "person": get_nested(who, "id"),
    }
    outbox.enqueue_once(COMMAND, f"{COMMAND}:{pull.pk}:{key}"[:160], {**wish, "body": body[:MAX_BODY_LENGTH], "at": at})
    if pull.seen_at is None:
        sync.enqueue_sync(pull)
    return None


# --- doing it --------------------------------------------------------------------------------------------------------


def run_commands(effect: Effect) -> Mapping[str, Any]:
    """Handler of the effect `github.command`."""
    wish = effect.payload
    pull = PullRequest.objects.get(pk=wish["pull"])
    if not effect.result:
        if not sync.is_synced(pull) and effect.attempts < MAX_WAITS:
            raise RetryLater("The pull request is being read.", timedelta(seconds=2))
        storage.store_release()  # packed now if it must be: not within the transaction
        asker = identify_commenter(pull, wish)
        said = command_parser.parse_comment(wish["body"])
        if any(isinstance(one, Command) and one.does == "approve" for one in said) and update_head(pull):
            raise RetryLater("A push came: the pull request is being read.", timedelta(seconds=2))
        run_commands_once(effect, pull, asker, said)
        enqueue_comment(pull)
    add_reaction(pull, effect)
    return dict(effect.result)


def identify_commenter(pull: PullRequest, wish: Mapping[str, Any]) -> Commenter:
    """Return who asks, with the permission that GitHub gives him now."""
    try:
        permission: str = client.get_client(pull.repository).permission(wish["login"])
    except client.NotConnectedError:
        permission = "none"
    at = sync.parse_time(wish["at"])
    assert at is not None, "looked at when it came"
    number = wish["person"] if isinstance(wish["person"], int) else None
    return Commenter(
        login=wish["login"],
        permission=permission,
        user=permissions.find_github_user(number) if number else None,
        is_author=number is not None and number == pull.author_id,
        at=at,
    )


def update_head(pull: PullRequest) -> bool:
    """Whether its head is another one than we were told so far; if so that is noted."""
    shown = sync.fetch_pull_request(pull)
    if shown is None or shown.head_sha == pull.head_sha:
        return False
    return sync.update_pull_request(pull, shown)


def run_commands_once(
    effect: Effect, pull: PullRequest, asker: Commenter, said: list[Command | InvalidCommand]
) -> None:
    """Do all that a comment asks for and note the answers, in one transaction and not twice."""
    with transaction.atomic():
        locked = Effect.objects.select_for_update().get(pk=effect.pk)
        if not locked.result:
            answers = [run_command(pull, asker, one) for one in said]
            locked.result = {
                "answers": [(line, sentence) for line, sentence, _ in answers],
                "went": all(why in ("", "help") for _, _, why in answers),
            }
            Effect.objects.filter(pk=effect.pk).update(result=locked.result)
            enqueue_answer(effect, pull, answers)
    effect.result = locked.result


Answer = tuple[str, str, str]
"""The line, what is answered, and why it needs an answer of its own: empty, `help`, `misread`, `no` or `not yours`."""


def run_command(pull: PullRequest, asker: Commenter, one: Command | InvalidCommand) -> Answer:
    if isinstance(one, InvalidCommand):
        return one.line, one.why, "misread"
    if one.does == "help":
        return one.line, "These can be written, one a line.", "help"
    try:
        with transaction.atomic():
            return one.line, HANDLERS[one.does](pull, asker, one), ""
    except NotAuthorizedError as error:
        return one.line, str(error), "not yours"
    except (RefusedError, IntakeError, RunError) as error:
        return one.line, str(error), "no"


def enqueue_answer(effect: Effect, pull: PullRequest, answers: list[Answer]) -> None:
    """Answer what did not go, in a comment of its own. Who may not is told so once in a pull request."""
    open_questions = [answer for answer in answers if answer[2]]
    if not open_questions:
        return
    refused = all(why == "not yours" for _, _, why in open_questions)
    key = f"{ANSWER}:{pull.pk}:{effect.payload['person']}" if refused else f"{ANSWER}:{effect.payload['comment']}"
    payload = {
        "pull": pull.pk,
        "comment": effect.payload["comment"],
        "login": effect.payload["login"],
        "answers": [(line, sentence) for line, sentence, _ in open_questions],
        "help": any(why in ("help", "misread") for _, _, why in open_questions),
    }
    outbox.enqueue_once(ANSWER, key[:160], payload)


def add_reaction(pull: PullRequest, effect: Effect) -> None:
    """Nod at a comment that was obeyed. The same nod again is no second one."""
    comment = effect.payload["comment"]
    if not isinstance(comment, int):
        return
    try:
        client.get_client(pull.repository).react(comment, "+1" if effect.result["went"] else "confused")
    except PermanentError:
        return  # it is gone, or we may not: what was asked for is done


# --- each command ----------------------------------------------------------------------------------------------------


def list_head_entries(pull: PullRequest) -> list[Entry]:
    """Return the entries of the head commit that are not closed, the description's first."""
    found = pull.entries.filter(sha=pull.head_sha).exclude(state__in=[Entry.State.REJECTED, Entry.State.WITHDRAWN])
    entries = list(found.select_related("track__season", "smoke_job", "requested_by", "bundle").order_by("pk"))
    if not entries:
        raise RefusedError("This commit is not entered: the first comment of the train here says what is in the way.")
    return sorted(entries, key=lambda entry: entry.pk != pull.entry_id)


def list_allowed_entries(pull: PullRequest, asker: Commenter, what: str, *, author: bool = False) -> list[Entry]:
    """Return the head's entries that this person may ask this of; raise NotYours where there is none."""
    entries = list_head_entries(pull)
    mine = [entry for entry in entries if (author and asker.is_author) or asker.may(what, entry)]
    if not mine:
        whom = "the author and maintainers" if author else "maintainers"
        raise NotAuthorizedError(f"Thank you, but this is for {whom} of this repository. Nothing has changed.")
    return mine


def start_smoke_test(pull: PullRequest, asker: Commenter, said: Command) -> str:
    entries = list_allowed_entries(pull, asker, "run", author=True)
    begun = [
        entry
        for entry in entries
        if smoke_tests.queue_smoke_test(entry, actor=asker.name, vouched=asker.may("approve", entry))
    ]
    if begun:
        return "The smoke run is queued."
    if any(smoke_tests.is_running(entry) for entry in entries):
        raise RefusedError("The smoke run is under way already.")
    raise RefusedError("A maintainer starts the first smoke run of somebody whose code is new here.")


def add_track(pull: PullRequest, asker: Commenter, said: Command) -> str:
    """Ask for another track, too: entering it is left to whatever follows the pull request."""
    list_allowed_entries(pull, asker, "run", author=True)
    found = Track.objects.filter(slug__iexact=said.word).first()
    if found is None:
        known = ", ".join(Track.objects.in_order().values_list("slug", flat=True))
        raise RefusedError(f"There is no track {said.word}: there are {known}.")
    row = PullRequest.objects.select_for_update().get(pk=pull.pk)
    also = row.fields.get("also", [])
    if found.slug in (row.fields.get("track"), *also):
        raise RefusedError(f"It is entered for {found.name} already.")
    PullRequest.objects.filter(pk=pull.pk).update(fields={**row.fields, "also": [*also, found.slug]})
    pull.refresh_from_db()
    sync.enqueue_sync(pull)
    return f"It is entered for {found.name}, too."


def run_hours(pull: PullRequest, asker: Commenter, said: Command) -> str:
    """Make a run of the description's track with a part of its budget."""
    entry = list_allowed_entries(pull, asker, "run")[0]
    budget = get_budget_part(entry.track, said.number)
    made = runs.make_run(entry, entry.track, budget=budget, actor=asker.name)
    if entry.state != Entry.State.APPROVED:
        return f"Run {made.pk} has a budget of {budget}; it waits for the approval of commit {entry.sha[:8]}."
    runs.queue_run(made, actor=asker.name)
    return f"Run {made.pk} is queued with a budget of {budget}."


def get_budget_part(track: Track, hours: float) -> str:
    """Return the part of a track's budget that so many hours are; of other budgets, by its expected time."""
    whole = Budget.parse(track.budget)
    part = hours * 3600 / (whole.amount if whole.kind == "seconds" else track.expected_seconds)
    if not MIN_PART <= part < 1:
        least = track.expected_seconds * MIN_PART / 3600
        raise RefusedError(
            f"{track.name} has {track.expected_seconds / 3600:.3g} h: ask for less, and for {least:.2g} h at least."
        )
    return str(whole.times(part))


def run_more_seeds(pull: PullRequest, asker: Commenter, said: Command) -> str:
    entry = list_allowed_entries(pull, asker, "run")[0]
    if entry.state != Entry.State.APPROVED:
        raise RefusedError(f"Commit {entry.sha[:8]} is not approved yet.")
    made = runs.queue_more_seeds(entry, int(said.number), actor=asker.name)
    return f"{len(made)} more run{'' if len(made) == 1 else 's'} queued: {', '.join(str(run.pk) for run in made)}."


def cancel_entries(pull: PullRequest, asker: Commenter, said: Command) -> str:
    """Stop what waits or runs of the head commit. What was made to check an author is not his to stop."""
    stopped = []
    reason = f"{asker.login} cancelled it in the pull request."
    for entry in list_allowed_entries(pull, asker, "cancel", author=True):
        if smoke_tests.is_running(entry):
            smoke_tests.cancel_smoke_test(entry, reason, asker.name)
            stopped.append("the smoke run")
        theirs = entry.runs.filter(state__in=Run.UNFINISHED).select_related("job", "score_job")
        if not asker.may("cancel", entry):
            theirs = theirs.filter(purpose=Run.Purpose.ENTRY)
        for run in theirs:
            runs.cancel_run(run, reason, asker.name)
            stopped.append(f"run {run.pk}")
    if not stopped:
        raise RefusedError("Nothing of it waits or runs.")
    return f"Cancelled: {', '.join(stopped)}. What a node works on ends when the node has heard of it."


def rerun_entries(pull: PullRequest, asker: Commenter, said: Command) -> str:
    """Let runs go on that the infrastructure broke, else run again with a fresh seed."""
    done = [rerun_entry(entry, asker) for entry in list_allowed_entries(pull, asker, "rerun", author=True)]
    if all(isinstance(one, RefusedError) for one in done):
        raise next(one for one in done if isinstance(one, RefusedError))
    return " ".join(one for one in done if isinstance(one, str))


def rerun_entry(entry: Entry, asker: Commenter) -> str | RefusedError:
    if entry.state != Entry.State.APPROVED:
        return RefusedError(f"Commit {entry.sha[:8]} is not approved yet; `/train smoke` repeats the smoke run.")
    theirs = entry.runs.select_related("entry__bundle", "entry__requested_by", "track__season", "season", "job")
    broken = [run for run in theirs if actions.is_infrastructure_failure(run)]
    if broken:
        for run in broken:
            runs.retry_run(run, actor=asker.name)
        return f"It goes on with its seed: {', '.join(f'run {run.pk}' for run in broken)}."
    last = theirs.filter(purpose=Run.Purpose.ENTRY).order_by("pk").last()
    if last is None:
        return RefusedError("It has no run yet that could be repeated.")
    if not last.is_over or actions.has_unfinished_run(last):
        return RefusedError("A run of it is under way: wait for its result first.")
    if last.state == Run.State.FINISHED and not asker.may("rerun", entry):
        # Who looks at a result and then asks for more seeds gets more false records (docs/multiplier.md).
        return RefusedError("It has a result. More seeds of it are for maintainers to ask for.")
    if last.state == Run.State.FINISHED and last.part < 1 and not last.is_trial:
        whole = runs.make_run(entry, entry.track, actor=asker.name)
        runs.queue_run(whole, actor=asker.name)
        return f"Run {whole.pk} is queued with the whole budget."
    return f"Run {runs.rerun(last, actor=asker.name).pk} is queued with a fresh seed."


def set_impact(pull: PullRequest, asker: Commenter, said: Command) -> str:
    """Set the impact: the place within a priority, which itself follows from what a run is for (docs/queue.md)."""
    for entry in list_allowed_entries(pull, asker, "priority"):
        intake.set_impact(entry, int(said.number), asker.name)
    return f"The impact is {said.number:.0f}: within its queue, higher goes first."


def approve_entries(pull: PullRequest, asker: Commenter, said: Command) -> str:
    """Approve the head commit, if that is what the maintainer looked at."""
    entries = list_allowed_entries(pull, asker, "approve")
    head = pull.head_sha
    if said.word and not head.startswith(said.word):
        raise RefusedError(
            f"The newest commit is {head[:8]}, not {said.word[:8]}: look at it, then `/approve {head[:8]}`."
        )
    if not said.word and pull.head_at is not None and asker.at <= pull.head_at:
        raise RefusedError(
            f"A push came after this comment, or at the same time: look at {head[:8]}, then `/approve {head[:8]}`."
        )
    for entry in entries:
        user = asker.user if asker.user and permissions.can_approve(asker.user, entry) else None
        intake.approve_entry(entry, head, user, actor=asker.name)
    return f"Commit {head[:8]} is approved."


HANDLERS: dict[str, Callable[[PullRequest, Commenter, Command], str]] = {
    "smoke": start_smoke_test,
    "track": add_track,
    "hours": run_hours,
    "seeds": run_more_seeds,
    "cancel": cancel_entries,
    "rerun": rerun_entries,
    "priority": set_impact,
    "approve": approve_entries,
}
