"""An entry waits for approval: for users who may approve it."""

from __future__ import annotations

from django.conf import settings
from django.contrib.auth.models import User

from leaderboard import permissions
from leaderboard.models import Entry
from leaderboard.notifications.message import Message

LABEL = "Waiting for approval"
HINT = "An entry has passed its smoke test, or needs none, and waits for approval."


def can_choose(user: User) -> bool:
    return bool(permissions.get_roles(user) & set(permissions.STAFF))


def is_relevant(user: User, about: str) -> bool:
    entry = find_entry(about)
    return entry is not None and permissions.can_approve(user, entry)


def compose(about: str) -> Message | None:
    entry = find_entry(about)
    if entry is None or not is_waiting(entry):
        return None
    by = f" by {entry.author}" if entry.author else ""
    hypothesis = (f"Its hypothesis: {' '.join(entry.hypothesis.split())[:300]}",) if entry.hypothesis else ()
    smoke = (entry.smoke_sentence,) if entry.smoke_sentence else ()
    return Message(
        title=f"Waits for approval: {entry.title}",
        lines=(f"{entry.architecture}{by}, commit {entry.sha[:8]}, for {entry.track.name}.", *hypothesis, *smoke),
        url=settings.SITE_URL + entry.get_absolute_url(),
        facts={"entry": entry.pk, "sha": entry.sha, "track": entry.track.slug, "author": entry.author},
    )


def is_waiting(entry: Entry) -> bool:
    """Return whether only the approval is missing."""
    return entry.state == Entry.State.PROPOSED and entry.smoke.get("passed", True) is not False


def get_key(entry: Entry) -> str:
    """Return the subject of the notice; each smoke test has its own."""
    return f"{entry.pk}.{entry.smoke_job_id or 0}"


def find_entry(about: str) -> Entry | None:
    return Entry.objects.select_related("track").filter(pk=int(about.partition(".")[0])).first()
