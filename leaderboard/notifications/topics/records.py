"""A record was confirmed, perhaps with bounties."""

from __future__ import annotations

from django.conf import settings
from django.contrib.auth.models import User

from leaderboard.models import Entry
from leaderboard.notifications.message import Message
from leaderboard.rankings import explanations
from leaderboard.rankings.standings_store import refresh_standings

LABEL = "Record"
HINT = "A record was confirmed, or a bounty claimed."


def can_choose(user: User) -> bool:
    return True


def is_relevant(user: User, about: str) -> bool:
    return True


def compose(about: str) -> Message | None:
    """`about`: the entry's id."""
    entry = Entry.objects.select_related("track__season__baseline").filter(pk=int(about)).first()
    if entry is None:
        return None
    by = f" by {entry.author}" if entry.author else ""
    table = refresh_standings(entry.track)
    row = table.get_row(entry.pk)
    standing = (explanations.describe_standing(row, table),) if row else ()
    claimed = list(entry.bounties.all())
    return Message(
        title=f"A record on {entry.track.name}: {entry.title}{by}",
        lines=(
            *standing,
            "Confirmed with new seeds on independent trusted nodes.",
            *(f"It claims the bounty {bounty.goal}: {bounty.reward}" for bounty in claimed),
        ),
        url=settings.SITE_URL + entry.get_absolute_url(),
        facts={
            "entry": entry.pk,
            "track": entry.track.slug,
            "multiplier": row.multiplier if row else None,
            "bounties": [bounty.pk for bounty in claimed],
        },
    )
