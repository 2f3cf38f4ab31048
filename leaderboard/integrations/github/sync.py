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
from leaderboard.integrations.github.deliveries import field, text
from leaderboard.integrations.github.front_matter import Asked
from leaderboard.job_handlers import smoke_tests
from leaderboard.models import Effect, Entry, Installation, PullRequest, Track
from leaderboard.outbox import Later, Refused
from leaderboard.submissions import intake, notebook_series
from leaderboard.submissions.intake import IntakeError
from leaderboard.submissions.repositories import MODELS, SHA, Unreachable

FOLLOW = "github.follow"
TRIES = 8
"""How often a commit is fetched that cannot be had; about three quarters of an hour."""
CLOSED = "The pull request was closed."


@dataclass(frozen=True)
class Seen:
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


def seen(pull: Any) -> Seen | None:
    """Read GitHub's object of a pull request; None where it lacks what it always has."""
    number, sha = field(pull, "number"), text(field(pull, "head", "sha"))
    updated = moment(field(pull, "updated_at"))
    if not isinstance(number, int) or not SHA.fullmatch(sha) or updated is None:
        return None
    merged = bool(field(pull, "merged") or field(pull, "merged_at"))
    ended = PullRequest.State.MERGED if merged else PullRequest.State.CLOSED
    author = field(pull, "user", "id")
    # The fork may be gone; the repository itself keeps the heads of its pull requests.
    clone = field(pull, "head", "repo", "clone_url") or field(pull, "base", "repo", "clone_url")
    return Seen(
        number=number,
        state=ended if field(pull, "state") == "closed" else PullRequest.State.OPEN,
        draft=bool(field(pull, "draft")),
        title=text(field(pull, "title"))[:300],
        body=text(field(pull, "body")),
        author=text(field(pull, "user", "login"))[:120],
        author_id=author if isinstance(author, int) else None,
        head_sha=sha,
        head_repository=text(clone)[:400],
        url=text(field(pull, "html_url"))[:400],
        updated_at=updated,
    )


def moment(value: Any) -> datetime | None:
    try:
        found = parse_datetime(text(value))
    except ValueError:
        return None
    return found if found is not None and found.tzinfo is not None else None


# --- what GitHub tells -----------------------------------------------------------------------------------------------


def pull_request(payload: dict[str, Any], installation: int | None) -> str | None:
    """Any `pull_request` delivery. https://docs.github.com/en/webhooks/webhook-events-and-payloads#pull_request"""
    repository = text(field(payload, "repository", "full_name"))
    if reason := not_ours(repository):
        return reason
    shown = seen(payload.get("pull_request"))
    if shown is None:
        return "It does not say which commit it is about."
    pull = known(repository, shown.number, installation)
    if pull.seen_at == shown.updated_at and differs(pull, shown):
        shown = now_on_github(pull) or shown  # two changes within a second: only GitHub knows which was last
    return None if note(pull, shown, opened=payload.get("action") == "opened") else "Something newer came before it."


def not_ours(repository: str) -> str:
    """Return why a repository's pull requests are none of ours; empty where they are.

    Who may write there may approve here, so it must be the main one and not any that has installed our App.
    """
    ours = client.main_repository()
    if not ours:
        return "The site's repository is not on GitHub: set GITHUB_REPOSITORY."
    return "" if repository.casefold() == ours.casefold() else f"Entries come from pull requests of {ours} only."


def known(repository: str, number: int, installation: int | None) -> PullRequest:
    """Return the row of a pull request, which knows nothing yet if it is new."""
    through = Installation.objects.filter(number=installation).first() if installation else None
    fields = {"installation": through}
    pull, _ = PullRequest.objects.get_or_create(repository=repository, number=number, defaults=fields)
    if through and pull.installation_id != through.pk:
        PullRequest.objects.filter(pk=pull.pk).update(installation=through)
    return pull


def differs(pull: PullRequest, shown: Seen) -> bool:
    return any(getattr(pull, name) != value for name, value in shown.fields().items())


def now_on_github(pull: PullRequest) -> Seen | None:
    """Return the pull request as it is now; None where GitHub cannot be asked."""
    try:
        return seen(client.for_repository(pull.repository).pull(pull.number))
    except Refused:
        return None


@transaction.atomic
def note(pull: PullRequest, shown: Seen, *, opened: bool = False) -> bool:
    """Bring the row up to date and have it followed; return False, and change nothing, for what is older than that."""
    row = PullRequest.objects.select_for_update().get(pk=pull.pk)
    if row.seen_at is not None and shown.updated_at < row.seen_at:
        return False
    fields: dict[str, Any] = {**shown.fields(), "seen_at": shown.updated_at}
    if row.head_sha != shown.head_sha:
        fields["head_at"] = None if opened and row.seen_at is None else shown.updated_at
    PullRequest.objects.filter(pk=pull.pk).update(**fields)
    pull.refresh_from_db()
    want_followed(pull)
    return True


def want_followed(pull: PullRequest) -> None:
    outbox.want(FOLLOW, f"{FOLLOW}:{pull.pk}", {"pull": pull.pk})


def is_followed(pull: PullRequest) -> bool:
    """Whether nothing is left to be done about what the row says."""
    return not Effect.objects.filter(
        key=f"{FOLLOW}:{pull.pk}", state__in=[Effect.State.WANTED, Effect.State.DOING]
    ).exists()


# --- what follows from it --------------------------------------------------------------------------------------------


def follow(effect: Effect) -> Mapping[str, Any]:
    """Handler of the effect `github.follow`: take back what is no longer asked for, enter what is."""
    from leaderboard.integrations.github.comments import tell

    pull = PullRequest.objects.get(pk=effect.payload["pull"])
    if pull.seen_at is None:
        shown = seen(client.for_repository(pull.repository).pull(pull.number))
        if shown is None:
            raise Refused(f"GitHub does not say what {pull} is.")
        note(pull, shown)
    try:
        take_up(pull, patient=effect.attempts < TRIES)
    except Later:
        tell(pull)
        raise
    tell(pull)
    return {"sha": pull.head_sha}


def take_up(pull: PullRequest, *, patient: bool) -> None:
    """Enter the head commit for the tracks it asks for. Raises Later where it cannot be fetched just now."""
    asked, problems = what_it_asks(pull, patient)
    leave_behind(pull, asked)
    first: Entry | None = None
    if asked and not problems and pull.state == PullRequest.State.OPEN and not pull.draft:
        try:
            entries = [enter(pull, asked, track) for track in tracks_of(pull, asked)]
            first = entries[0]
        except IntakeError as error:
            problems = [unfetched(error, patient)]
    keep(pull, asked, problems, first)
    if patient and problems and problems[0].startswith(UNFETCHED):
        raise Later(problems[0])


@transaction.atomic
def keep(pull: PullRequest, asked: Asked | None, problems: list[str], entry: Entry | None) -> None:
    """Note what it asks for and what came of it, unless it is another pull request by now."""
    row = PullRequest.objects.select_for_update().get(pk=pull.pk)
    if (row.head_sha, row.seen_at) == (pull.head_sha, pull.seen_at):
        also = row.fields.get("also", [])  # comments add to it meanwhile
        fields = {**({} if asked is None else asked.to_dict()), **({"also": also} if also else {})}
        PullRequest.objects.filter(pk=pull.pk).update(fields=fields, problems=problems, entry=entry)
    pull.refresh_from_db()


UNFETCHED = "The commit could not be fetched"


def unfetched(error: IntakeError, patient: bool) -> str:
    """Return what an author reads; where it may be the network's fault it is tried again."""
    if not isinstance(error.__cause__, Unreachable):
        return str(error)
    onward = "It is tried again by itself." if patient else "It was tried for a while; a push, or an edit, tries again."
    return f"{UNFETCHED}: {str(error).rstrip('.')}. {onward}"


def what_it_asks(pull: PullRequest, patient: bool) -> tuple[Asked | None, list[str]]:
    """Return what the description asks for, None for nothing, and what is wrong with it."""
    if pull.state != PullRequest.State.OPEN:
        return None, []
    asked = front_matter.read(pull.body, dict(Track.objects.in_order().values_list("slug", "name")))
    if asked is not None:
        return (None, []) if asked.wants_no_run else (asked, list(asked.problems))
    try:
        touched = intake.read(pull.head_repository, pull.head_sha).changed_files
    except IntakeError as error:
        return None, [unfetched(error, patient)] if patient and isinstance(error.__cause__, Unreachable) else []
    ours = any(path.startswith((MODELS, notebook_series.FOLDER)) for path in touched)
    return None, [front_matter.NO_BLOCK] if ours else []


def tracks_of(pull: PullRequest, asked: Asked) -> list[Track]:
    """Return the tracks it is entered for: what its block says first, then those that comments asked for."""
    slugs = list(dict.fromkeys([asked.track, *pull.fields.get("also", [])]))
    there = {track.slug: track for track in Track.objects.filter(slug__in=slugs).select_related("season")}
    return [there[slug] for slug in slugs if slug in there]


def enter(pull: PullRequest, asked: Asked, track: Track) -> Entry:
    """Return the entry of the head commit on a track, open, with a smoke run if it may have one."""
    actor = f"github:{pull.author}"
    entry = intake.enter(
        pull.head_repository,
        pull.head_sha,
        pull.title,
        asked.architecture,
        track,
        author=pull.author,
        hypothesis=hypothesis(asked),
        url=pull.url[:200],
        config=asked.config,
        requested_by=permissions.known_on_github(pull.author_id) if pull.author_id else None,
        pull_request=pull,
        actor=actor,
    )
    Entry.objects.filter(pk=entry.pk, pull_request=None).update(pull_request=pull)
    entry.refresh_from_db()
    again = entry.pull_request_id == pull.pk and intake.reopen(entry, "The pull request asks for it again.", actor)
    reworded = intake.reword(entry, title=pull.title, hypothesis=hypothesis(asked), config=asked.config)
    if again or reworded or not (entry.smoke or smoke_tests.under_way(entry)):
        smoke_tests.begin(entry, actor=actor)
    return entry


def hypothesis(asked: Asked) -> str:
    return f"{asked.hypothesis} Expected effect: {asked.expected_effect}"


def leave_behind(pull: PullRequest, asked: Asked | None) -> None:
    """Withdraw the entries that the pull request no longer asks for; what of them waits or runs is cancelled."""
    open_states = [Entry.State.PROPOSED, Entry.State.SMOKE, Entry.State.APPROVED]
    for entry in pull.entries.filter(state__in=open_states).select_related("track", "smoke_job"):
        if not (reason := why_left(pull, asked, entry)):
            continue
        try:
            intake.withdraw(entry, reason, f"github:{pull.author}")
        except IntakeError:
            continue  # a maintainer has rejected it meanwhile
        if smoke_tests.under_way(entry):
            smoke_tests.cancel(entry, reason, f"github:{pull.author}")


def why_left(pull: PullRequest, asked: Asked | None, entry: Entry) -> str:
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
