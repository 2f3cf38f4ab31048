"""Pull requests become entries: `update_pull_request` stores what GitHub sends, `sync_pull_request` follows it.

Deliveries may come in any order; the newest state of GitHub counts. The sync compares the row with its entries, so it
can run at any time and be repeated after a crash.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from django.db import transaction
from django.utils.dateparse import parse_datetime

from leaderboard import outbox, permissions
from leaderboard.integrations.github import client, front_matter
from leaderboard.integrations.github.comments import enqueue_comment
from leaderboard.integrations.github.deliveries import as_number, as_text, get_nested
from leaderboard.integrations.github.front_matter import FrontMatter
from leaderboard.models import Entry, GitHubRepository, OutboxMessage, PullRequest, Track
from leaderboard.outbox import PermanentError, RetryLater
from leaderboard.submissions import intake, notebook_series, smoke_tests, stations
from leaderboard.submissions.intake import IntakeError
from leaderboard.submissions.repositories import MODELS, SHA, UnreachableError

SYNC = "github.follow"
MAX_FETCHES = 8  # of an unreachable commit, in about three quarters of an hour
UNFETCHED = "The commit could not be fetched"


@dataclass(frozen=True)
class PullRequestState:
    number: int
    updated_at: datetime
    fields: dict[str, Any]  # of its row

    @property
    def head_sha(self) -> str:
        return str(self.fields["head_sha"])


def parse_pull_request(pull: Any) -> PullRequestState | None:
    """Parse GitHub's object of a pull request; None if it lacks a required field."""
    number, sha = as_number(get_nested(pull, "number"), 2**31), as_text(get_nested(pull, "head", "sha"))
    updated = parse_time(get_nested(pull, "updated_at"))
    if number is None or not SHA.fullmatch(sha) or updated is None:
        return None
    merged = get_nested(pull, "merged") or get_nested(pull, "merged_at")
    ended = PullRequest.State.MERGED if merged else PullRequest.State.CLOSED
    # If the fork is gone: the repository itself keeps the heads of its pull requests.
    clone = get_nested(pull, "head", "repo", "clone_url") or get_nested(pull, "base", "repo", "clone_url")
    fields = {
        "state": ended if get_nested(pull, "state") == "closed" else PullRequest.State.OPEN,
        "draft": bool(get_nested(pull, "draft")),
        "title": as_text(get_nested(pull, "title"))[:300],
        "body": as_text(get_nested(pull, "body")),
        "author": as_text(get_nested(pull, "user", "login"))[:120],
        "author_id": as_number(get_nested(pull, "user", "id")),
        "head_sha": sha,
        "head_repository": as_text(clone)[:400],
        "url": as_text(get_nested(pull, "html_url"))[:400],
    }
    return PullRequestState(number, updated, fields)


def parse_time(value: Any) -> datetime | None:
    try:
        found = parse_datetime(as_text(value))
    except ValueError:
        return None
    return found if found is not None and found.tzinfo is not None else None


# --- store what GitHub sends ------------------------------------------------------------------------------------------


def handle_pull_request(payload: dict[str, Any]) -> str | None:
    """Handle `pull_request`. https://docs.github.com/en/webhooks/webhook-events-and-payloads#pull_request"""
    repository = as_text(get_nested(payload, "repository", "full_name"))
    if reason := explain_foreign(repository, as_number(get_nested(payload, "repository", "id"))):
        return reason
    shown = parse_pull_request(payload.get("pull_request"))
    if shown is None:
        return "It does not say which commit it is about."
    pull = get_pull_request(repository, shown.number)
    if pull.seen_at == shown.updated_at and any(getattr(pull, name) != shown.fields[name] for name in shown.fields):
        shown = fetch_pull_request(pull) or shown  # two changes within a second: only GitHub knows the order
    is_updated = update_pull_request(pull, shown, opened=payload.get("action") == "opened")
    return None if is_updated else "Something newer came before it."


def explain_foreign(repository: str, number: int | None) -> str:
    """Return why pull requests of a repository are ignored; empty for the main repository.

    Writers of the repository may approve entries here, so it cannot be any repository with the App. `number`: GitHub's
    id. The first delivery of the configured name stores it; from then on it decides, since a name can be changed, and
    then be taken by others.
    """
    configured = client.get_configured_repository()
    if not configured:
        return "The site's repository is not on GitHub: set GITHUB_REPOSITORY."
    own = client.find_known_repository(configured)
    foreign = f"Entries come from pull requests of {own or configured} only."
    if own is None or number is None:
        if repository.lower() != (own.name if own else configured).lower():
            return foreign
        if number is not None:
            defaults = {"number": number, "name": repository}
            GitHubRepository.objects.get_or_create(configured=configured.lower(), defaults=defaults)
        return ""
    if number != own.number:
        is_namesake = repository.lower() in (own.name.lower(), own.configured)
        hint = f"{repository} is another repository on GitHub now: its id was {own.number} and is {number}."
        return f"{hint} If that is right, delete its row in the admin." if is_namesake else foreign
    if repository != own.name:
        rename_repository(own, repository)
    return ""


@transaction.atomic
def rename_repository(known: GitHubRepository, name: str) -> None:
    PullRequest.objects.filter(repository=known.name).update(repository=name)
    GitHubRepository.objects.filter(pk=known.pk).update(name=name)


def get_pull_request(repository: str, number: int) -> PullRequest:
    """Return the row of a pull request; a new one is empty."""
    return PullRequest.objects.get_or_create(repository=repository, number=number)[0]


def fetch_pull_request(pull: PullRequest) -> PullRequestState | None:
    """Return the current state on GitHub; None if GitHub refuses."""
    try:
        return parse_pull_request(client.get_client(pull.repository).get_pull_request(pull.number))
    except PermanentError:
        return None


@transaction.atomic
def update_pull_request(pull: PullRequest, shown: PullRequestState, *, opened: bool = False) -> bool:
    """Update the row and enqueue its sync; return False, and change nothing, if the state is outdated."""
    row = PullRequest.objects.select_for_update().get(pk=pull.pk)
    if row.seen_at is not None and shown.updated_at < row.seen_at:
        return False
    fields = {**shown.fields, "seen_at": shown.updated_at}
    if row.head_sha != shown.head_sha:
        fields["head_at"] = None if opened and row.seen_at is None else shown.updated_at
    PullRequest.objects.filter(pk=pull.pk).update(**fields)
    pull.refresh_from_db()
    enqueue_sync(pull)
    return True


def enqueue_sync(pull: PullRequest) -> None:
    outbox.enqueue(SYNC, f"{SYNC}:{pull.pk}", {"pull": pull.pk})


def is_synced(pull: PullRequest) -> bool:
    pending = [OutboxMessage.State.PENDING, OutboxMessage.State.CLAIMED]
    return not OutboxMessage.objects.filter(key=f"{SYNC}:{pull.pk}", state__in=pending).exists()


# --- sync the entries -------------------------------------------------------------------------------------------------


def sync_pull_request(message: OutboxMessage) -> Mapping[str, Any]:
    """Handle `github.follow`: withdraw entries that are outdated, and enter the head commit."""
    pull = PullRequest.objects.get(pk=message.payload["pull"])
    if pull.seen_at is None:
        shown = parse_pull_request(client.get_client(pull.repository).get_pull_request(pull.number))
        if shown is None:
            raise PermanentError(f"GitHub does not say what {pull} is.")
        update_pull_request(pull, shown)
    try:
        enter_head(pull, can_retry=message.attempts < MAX_FETCHES)
    except RetryLater:
        enqueue_comment(pull)
        raise
    enqueue_comment(pull)
    return {"sha": pull.head_sha}


def enter_head(pull: PullRequest, *, can_retry: bool) -> None:
    request, problems = read_request(pull, can_retry)
    withdraw_outdated(pull, request)
    entries: list[Entry] = []
    if request and not problems and pull.state == PullRequest.State.OPEN and not pull.draft:
        try:
            entries = [enter_track(pull, request, track) for track in list_tracks(pull, request)]
        except IntakeError as error:
            problems = [describe_fetch_error(error, can_retry)]
    save_result(pull, request, problems, entries[0] if entries else None)
    if can_retry and problems and problems[0].startswith(UNFETCHED):
        raise RetryLater(problems[0])


@transaction.atomic
def save_result(pull: PullRequest, request: FrontMatter | None, problems: list[str], entry: Entry | None) -> None:
    """Store the request and its outcome, unless the pull request has changed meanwhile."""
    row = PullRequest.objects.select_for_update().get(pk=pull.pk)
    if (row.head_sha, row.seen_at) == (pull.head_sha, pull.seen_at):
        also = row.fields.get("also", [])  # comments add to it meanwhile
        fields = {**({} if request is None else request.to_dict()), **({"also": also} if also else {})}
        PullRequest.objects.filter(pk=pull.pk).update(fields=fields, problems=problems, entry=entry)
    pull.refresh_from_db()


def describe_fetch_error(error: IntakeError, can_retry: bool) -> str:
    """Return the error for the author, with what happens next if the repository was unreachable."""
    if not isinstance(error.__cause__, UnreachableError):
        return str(error)
    hint = "It is tried again by itself." if can_retry else "It was tried for a while; a push, or an edit, tries again."
    return f"{UNFETCHED}: {str(error).rstrip('.')}. {hint}"


def read_request(pull: PullRequest, can_retry: bool) -> tuple[FrontMatter | None, list[str]]:
    """Return the request of the description (None: no run) and its problems."""
    if pull.state != PullRequest.State.OPEN:
        return None, []
    request = front_matter.parse_front_matter(pull.body, dict(Track.objects.in_order().values_list("slug", "name")))
    if request is not None:
        return (None, []) if request.wants_no_run else (request, list(request.problems))
    try:
        changed = intake.fetch_commit(pull.head_repository, pull.head_sha).changed_files
    except IntakeError as error:
        is_unreachable = can_retry and isinstance(error.__cause__, UnreachableError)
        return None, [describe_fetch_error(error, can_retry)] if is_unreachable else []
    is_model_change = any(path.startswith((MODELS, notebook_series.FOLDER)) for path in changed)
    return None, [front_matter.NO_BLOCK] if is_model_change else []


def list_tracks(pull: PullRequest, request: FrontMatter) -> list[Track]:
    slugs = list(dict.fromkeys([request.track, *pull.fields.get("also", [])]))
    tracks = {track.slug: track for track in Track.objects.filter(slug__in=slugs).select_related("season")}
    return [tracks[slug] for slug in slugs if slug in tracks]


def enter_track(pull: PullRequest, request: FrontMatter, track: Track) -> Entry:
    """Submit or update the head commit's entry on a track, and queue a smoke test if it may have one."""
    actor = f"github:{pull.author}"
    requested_by = permissions.find_github_user(pull.author_id) if pull.author_id else None
    hypothesis = f"{request.hypothesis} Expected effect: {request.expected_effect}"
    entry = intake.submit_entry(
        pull.head_repository,
        pull.head_sha,
        pull.title,
        request.architecture,
        track,
        author=pull.author,
        hypothesis=hypothesis,
        url=pull.url[:200],
        config=request.config,
        based_on=request.based_on,
        requested_by=requested_by,
        pull_request=pull,
        actor=actor,
    )
    # Anyone may have requested a run of this public commit before: it belongs to the author that GitHub vouches for.
    intake.check_ancestor(request.based_on, entry.sha, entry.pk)
    unclaimed = stations.find_entries(entry).filter(pull_request=None)
    unclaimed.update(pull_request=pull, author=pull.author, requested_by=requested_by, based_on=request.based_on)
    entry.refresh_from_db()
    is_own = entry.pull_request_id == pull.pk
    if is_own and request.based_on:
        stations.set_ancestor(entry, request.based_on)
    is_reopened = is_own and intake.reopen_entry(entry, "The pull request requests it again.", actor)
    has_new_config = intake.update_entry_text(entry, title=pull.title, hypothesis=hypothesis, config=request.config)
    if is_reopened or has_new_config or not (entry.smoke or smoke_tests.is_running(entry)):
        smoke_tests.queue_smoke_test(entry, actor=actor)
    return entry


def withdraw_outdated(pull: PullRequest, request: FrontMatter | None) -> None:
    open_states = [Entry.State.PROPOSED, Entry.State.SMOKE, Entry.State.APPROVED]
    for entry in pull.entries.filter(state__in=open_states).select_related("track", "smoke_job"):
        if not (reason := explain_withdrawal(pull, request, entry)):
            continue
        try:
            intake.withdraw_entry(entry, reason, f"github:{pull.author}")
        except IntakeError:
            continue  # a maintainer has rejected it meanwhile


def explain_withdrawal(pull: PullRequest, request: FrontMatter | None, entry: Entry) -> str:
    """Return why an entry is outdated; empty if it is not."""
    if pull.state == PullRequest.State.MERGED:
        # Approved entries still run; others are superseded by main.
        return "" if entry.state == Entry.State.APPROVED else "It was merged: runs of main train it."
    if pull.state == PullRequest.State.CLOSED:
        return "The pull request was closed."
    if entry.sha != pull.head_sha:
        return f"A push replaced it by {pull.head_sha[:8]}."
    if request is None:
        return "" if entry.state == Entry.State.APPROVED else "The description no longer requests a run."
    requested = {request.track, *pull.fields.get("also", [])}
    requested |= {first.slug for track in list_tracks(pull, request) for first in track.list_earlier()}
    if request.problems or requested & {track.slug for track in (*entry.track.list_earlier(), entry.track)}:
        return ""
    return f"The description requests {request.track} instead of {entry.track.slug}."
