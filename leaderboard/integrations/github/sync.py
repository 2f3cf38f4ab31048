"""From a pull request to its entries: what GitHub tells is noted first, then followed.

`note` brings the row up to date with what GitHub said last, whatever the order in which that comes in. `follow` makes
the entries what the row asks for, and can be run at any time, by any number of deaths: it only ever compares the two.
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
from leaderboard.integrations.github.deliveries import as_text, get_nested
from leaderboard.integrations.github.front_matter import FrontMatter
from leaderboard.job_handlers import smoke_tests
from leaderboard.models import Effect, Entry, Installation, PullRequest, Track
from leaderboard.outbox import PermanentError, RetryLater
from leaderboard.submissions import intake, notebook_series
from leaderboard.submissions.intake import IntakeError
from leaderboard.submissions.repositories import MODELS, SHA, UnreachableError

SYNC = "github.follow"
MAX_FETCHES = 8
"""How often a commit is fetched that cannot be had; about three quarters of an hour."""
CLOSED = "The pull request was closed."


@dataclass(frozen=True)
class PullRequestState:
    """A pull request as GitHub shows it."""

    number: int
    state: PullRequest.State
    draft: bool
    title: str
    body: str
    author: str
    author_id: int | None
    head_sha: str
    head_repository: str
    url: str
    updated_at: datetime

    def fields(self) -> dict[str, Any]:
        names = ("state", "draft", "title", "body", "author", "author_id", "head_sha", "head_repository", "url")
        return {name: getattr(self, name) for name in names}


def parse_pull_request(pull: Any) -> PullRequestState | None:
    """Read GitHub's object of a pull request; None where it lacks what it always has."""
    number, sha = get_nested(pull, "number"), as_text(get_nested(pull, "head", "sha"))
    updated = parse_time(get_nested(pull, "updated_at"))
    if not isinstance(number, int) or not SHA.fullmatch(sha) or updated is None:
        return None
    merged = bool(get_nested(pull, "merged") or get_nested(pull, "merged_at"))
    ended = PullRequest.State.MERGED if merged else PullRequest.State.CLOSED
    author = get_nested(pull, "user", "id")
    # The fork may be gone; the repository itself keeps the heads of its pull requests.
    clone = get_nested(pull, "head", "repo", "clone_url") or get_nested(pull, "base", "repo", "clone_url")
    return PullRequestState(
        number=number,
        state=ended if get_nested(pull, "state") == "closed" else PullRequest.State.OPEN,
        draft=bool(get_nested(pull, "draft")),
        title=as_text(get_nested(pull, "title"))[:300],
        body=as_text(get_nested(pull, "body")),
        author=as_text(get_nested(pull, "user", "login"))[:120],
        author_id=author if isinstance(author, int) else None,
        head_sha=sha,
        head_repository=as_text(clone)[:400],
        url=as_text(get_nested(pull, "html_url"))[:400],
        updated_at=updated,
    )


def parse_time(value: Any) -> datetime | None:
    try:
        found = parse_datetime(as_text(value))
    except ValueError:
        return None
    return found if found is not None and found.tzinfo is not None else None


# --- what GitHub tells -----------------------------------------------------------------------------------------------


def handle_pull_request(payload: dict[str, Any], installation: int | None) -> str | None:
    """Any `pull_request` delivery. https://docs.github.com/en/webhooks/webhook-events-and-payloads#pull_request"""
    repository = as_text(get_nested(payload, "repository", "full_name"))
    if reason := explain_foreign(repository):
        return reason
    shown = parse_pull_request(payload.get("pull_request"))
    if shown is None:
        return "It does not say which commit it is about."
    pull = get_pull_request(repository, shown.number, installation)
    if pull.seen_at == shown.updated_at and has_changed(pull, shown):
        shown = fetch_pull_request(pull) or shown  # two changes within a second: only GitHub knows which was last
    return (
        None
        if update_pull_request(pull, shown, opened=payload.get("action") == "opened")
        else "Something newer came before it."
    )


def explain_foreign(repository: str) -> str:
    """Return why a repository's pull requests are none of ours; empty where they are.

    Who may write there may approve here, so it must be the main one and not any that has installed our App.
    """
    ours = client.get_main_repository()
    if not ours:
        return "The site's repository is not on GitHub: set GITHUB_REPOSITORY."
    return "" if repository.casefold() == ours.casefold() else f"Entries come from pull requests of {ours} only."


def get_pull_request(repository: str, number: int, installation: int | None) -> PullRequest:
    """Return the row of a pull request, which knows nothing yet if it is new."""
    through = Installation.objects.filter(number=installation).first() if installation else None
    fields = {"installation": through}
    pull, _ = PullRequest.objects.get_or_create(repository=repository, number=number, defaults=fields)
    if through and pull.installation_id != through.pk:
        PullRequest.objects.filter(pk=pull.pk).update(installation=through)
    return pull


def has_changed(pull: PullRequest, shown: PullRequestState) -> bool:
    return any(getattr(pull, name) != value for name, value in shown.fields().items())


def fetch_pull_request(pull: PullRequest) -> PullRequestState | None:
    """Return the pull request as it is now; None where GitHub cannot be asked."""
    try:
        return parse_pull_request(client.get_client(pull.repository).pull(pull.number))
    except PermanentError:
        return None


@transaction.atomic
def update_pull_request(pull: PullRequest, shown: PullRequestState, *, opened: bool = False) -> bool:
    """Bring the row up to date and have it followed; return False, and change nothing, for what is older than that."""
    row = PullRequest.objects.select_for_update().get(pk=pull.pk)
    if row.seen_at is not None and shown.updated_at < row.seen_at:
        return False
    fields: dict[str, Any] = {**shown.fields(), "seen_at": shown.updated_at}
    if row.head_sha != shown.head_sha:
        fields["head_at"] = None if opened and row.seen_at is None else shown.updated_at
    PullRequest.objects.filter(pk=pull.pk).update(**fields)
    pull.refresh_from_db()
    enqueue_sync(pull)
    return True


def enqueue_sync(pull: PullRequest) -> None:
    outbox.enqueue(SYNC, f"{SYNC}:{pull.pk}", {"pull": pull.pk})


def is_synced(pull: PullRequest) -> bool:
    """Whether nothing is left to be done about what the row says."""
    return not Effect.objects.filter(
        key=f"{SYNC}:{pull.pk}", state__in=[Effect.State.WANTED, Effect.State.DOING]
    ).exists()


# --- what follows from it --------------------------------------------------------------------------------------------


def sync_pull_request(effect: Effect) -> Mapping[str, Any]:
    """Handler of the effect `github.follow`: take back what is no longer asked for, enter what is."""
    from leaderboard.integrations.github.comments import enqueue_comment

    pull = PullRequest.objects.get(pk=effect.payload["pull"])
    if pull.seen_at is None:
        shown = parse_pull_request(client.get_client(pull.repository).pull(pull.number))
        if shown is None:
            raise PermanentError(f"GitHub does not say what {pull} is.")
        update_pull_request(pull, shown)
    try:
        enter_head(pull, patient=effect.attempts < MAX_FETCHES)
    except RetryLater:
        enqueue_comment(pull)
        raise
    enqueue_comment(pull)
    return {"sha": pull.head_sha}


def enter_head(pull: PullRequest, *, patient: bool) -> None:
    """Enter the head commit for the tracks it asks for. Raises Later where it cannot be fetched just now."""
    asked, problems = read_request(pull, patient)
    withdraw_outdated(pull, asked)
    first: Entry | None = None
    if asked and not problems and pull.state == PullRequest.State.OPEN and not pull.draft:
        try:
            entries = [enter_track(pull, asked, track) for track in list_tracks(pull, asked)]
            first = entries[0]
        except IntakeError as error:
            problems = [describe_fetch_error(error, patient)]
    save_result(pull, asked, problems, first)
    if patient and problems and problems[0].startswith(UNFETCHED):
        raise RetryLater(problems[0])


@transaction.atomic
def save_result(pull: PullRequest, asked: FrontMatter | None, problems: list[str], entry: Entry | None) -> None:
    """Note what it asks for and what came of it, unless it is another pull request by now."""
    row = PullRequest.objects.select_for_update().get(pk=pull.pk)
    if (row.head_sha, row.seen_at) == (pull.head_sha, pull.seen_at):
        also = row.fields.get("also", [])  # comments add to it meanwhile
        fields = {**({} if asked is None else asked.to_dict()), **({"also": also} if also else {})}
        PullRequest.objects.filter(pk=pull.pk).update(fields=fields, problems=problems, entry=entry)
    pull.refresh_from_db()


UNFETCHED = "The commit could not be fetched"


def describe_fetch_error(error: IntakeError, patient: bool) -> str:
    """Return what an author reads; where it may be the network's fault it is tried again."""
    if not isinstance(error.__cause__, UnreachableError):
        return str(error)
    onward = "It is tried again by itself." if patient else "It was tried for a while; a push, or an edit, tries again."
    return f"{UNFETCHED}: {str(error).rstrip('.')}. {onward}"


def read_request(pull: PullRequest, patient: bool) -> tuple[FrontMatter | None, list[str]]:
    """Return what the description asks for, None for nothing, and what is wrong with it."""
    if pull.state != PullRequest.State.OPEN:
        return None, []
    asked = front_matter.parse_front_matter(pull.body, dict(Track.objects.in_order().values_list("slug", "name")))
    if asked is not None:
        return (None, []) if asked.wants_no_run else (asked, list(asked.problems))
    try:
        touched = intake.fetch_commit(pull.head_repository, pull.head_sha).changed_files
    except IntakeError as error:
        return None, [describe_fetch_error(error, patient)] if patient and isinstance(
            error.__cause__, UnreachableError
        ) else []
    ours = any(path.startswith((MODELS, notebook_series.FOLDER)) for path in touched)
    return None, [front_matter.NO_BLOCK] if ours else []


def list_tracks(pull: PullRequest, asked: FrontMatter) -> list[Track]:
    """Return the tracks it is entered for: what its block says first, then those that comments asked for."""
    slugs = list(dict.fromkeys([asked.track, *pull.fields.get("also", [])]))
    there = {track.slug: track for track in Track.objects.filter(slug__in=slugs).select_related("season")}
    return [there[slug] for slug in slugs if slug in there]


def enter_track(pull: PullRequest, asked: FrontMatter, track: Track) -> Entry:
    """Return the entry of the head commit on a track, open, with a smoke run if it may have one."""
    actor = f"github:{pull.author}"
    entry = intake.submit_entry(
        pull.head_repository,
        pull.head_sha,
        pull.title,
        asked.architecture,
        track,
        author=pull.author,
        hypothesis=format_hypothesis(asked),
        url=pull.url[:200],
        config=asked.config,
        requested_by=permissions.find_github_user(pull.author_id) if pull.author_id else None,
        pull_request=pull,
        actor=actor,
    )
    Entry.objects.filter(pk=entry.pk, pull_request=None).update(pull_request=pull)
    entry.refresh_from_db()
    again = entry.pull_request_id == pull.pk and intake.reopen_entry(
        entry, "The pull request asks for it again.", actor
    )
    reworded = intake.update_entry_text(
        entry, title=pull.title, hypothesis=format_hypothesis(asked), config=asked.config
    )
    if again or reworded or not (entry.smoke or smoke_tests.is_running(entry)):
        smoke_tests.queue_smoke_test(entry, actor=actor)
    return entry


def format_hypothesis(asked: FrontMatter) -> str:
    return f"{asked.hypothesis} Expected effect: {asked.expected_effect}"


def withdraw_outdated(pull: PullRequest, asked: FrontMatter | None) -> None:
    """Withdraw the entries that the pull request no longer asks for; what of them waits or runs is cancelled."""
    open_states = [Entry.State.PROPOSED, Entry.State.SMOKE, Entry.State.APPROVED]
    for entry in pull.entries.filter(state__in=open_states).select_related("track", "smoke_job"):
        if not (reason := explain_withdrawal(pull, asked, entry)):
            continue
        try:
            intake.withdraw_entry(entry, reason, f"github:{pull.author}")
        except IntakeError:
            continue  # a maintainer has rejected it meanwhile
        if smoke_tests.is_running(entry):
            smoke_tests.cancel_smoke_test(entry, reason, f"github:{pull.author}")


def explain_withdrawal(pull: PullRequest, asked: FrontMatter | None, entry: Entry) -> str:
    """Return why an entry is not asked for any more, in a sentence; empty where it is."""
    if pull.state == PullRequest.State.MERGED:
        # What was approved is still worth knowing; what was not is main's now.
        return "" if entry.state == Entry.State.APPROVED else "It was merged: main's own train takes it."
    if pull.state == PullRequest.State.CLOSED:
        return CLOSED
    if entry.sha != pull.head_sha:
        return f"A push replaced it by {pull.head_sha[:8]}."
    if asked is None:
        return "" if entry.state == Entry.State.APPROVED else "The description no longer asks for a run."
    if asked.problems or entry.track.slug in (asked.track, *pull.fields.get("also", [])):
        return ""
    return f"The description asks for {asked.track} instead of {entry.track.slug}."
