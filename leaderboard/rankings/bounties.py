"""Bounties: the first confirmed record whose multiplier exceeds a bounty's goal claims it."""

from __future__ import annotations

from django.db import transaction
from django.utils import timezone

from leaderboard.models import Bounty, Entry
from leaderboard.rankings.standings import compute_standings
from scheduler.models import SITE_ACTOR, Event


def claim_bounties(entry: Entry) -> list[Bounty]:
    """Award the open bounties that a new record exceeds, by its FLOPs multiplier. Needs a transaction."""
    row = compute_standings(entry.track, entries=[entry.pk]).get_row(entry.pk)
    multiplier = row.estimate.cm if row and row.estimate else None
    if multiplier is None:
        return []
    won = [bounty for bounty in Bounty.objects.open().filter(track=entry.track_id) if bounty.above < multiplier]
    return [bounty for bounty in won if award_bounty(bounty, entry, multiplier)]


def award_bounty(bounty: Bounty, entry: Entry, multiplier: float) -> bool:
    """Return whether this call awarded it."""
    claimed = Bounty.objects.filter(pk=bounty.pk, state=Bounty.State.OPEN).update(
        state=Bounty.State.CLAIMED, claimed_by=entry, claimed_at=timezone.now(), multiplier=multiplier
    )
    if claimed:
        said = f"It claims the bounty {bounty.goal} with {multiplier:.3f}: {bounty.reward}"
        Event.record(SITE_ACTOR, entry, said)
        Event.record(SITE_ACTOR, bounty, f"Claimed by {entry.title} with a multiplier of {multiplier:.3f}.")
    return claimed == 1


@transaction.atomic
def withdraw_bounty(bounty: Bounty, actor: str) -> bool:
    """Withdraw an open bounty; return whether it was open."""
    return change_state(bounty, Bounty.State.OPEN, Bounty.State.WITHDRAWN, actor, "Withdrawn.")


@transaction.atomic
def reopen_bounty(bounty: Bounty, actor: str) -> bool:
    """Reopen a bounty that was withdrawn, or claimed by a record that did not stand."""
    given_back = {"claimed_by": None, "claimed_at": None, "multiplier": None}
    states = (Bounty.State.CLAIMED, Bounty.State.WITHDRAWN)
    return any(change_state(bounty, state, Bounty.State.OPEN, actor, "Open again.", **given_back) for state in states)


def change_state(bounty: Bounty, since: str, to: str, actor: str, sentence: str, **fields: None) -> bool:
    changed = Bounty.objects.filter(pk=bounty.pk, state=since).update(state=to, **fields)
    if changed:
        Event.record(actor, bounty, sentence)
    bounty.refresh_from_db()
    return changed == 1
