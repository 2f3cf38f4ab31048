"""Decides how many packets a volunteer gets, and whom to trust or ban.

- New volunteers get few packets at a time and per hour. After ten comparisons in a row that agreed (BOINC's number;
  Anderson 2019, section 3.2), or when a maintainer says so, a volunteer is trusted. Trusted nodes are, too.
- A volunteer is banned when most of the latest outputs were rejected, after three missed known answers in a row, or
  when hardly any comparison agreed.
- A trusted volunteer who misses three known answers in a row becomes new instead, and the packets in doubt stop being
  known answers: two volunteers may have agreed on nonsense, and no honest one should be banned for it.
- When two volunteers disagree, both may be honest. Neither is blamed; both get more known answers for a while.

Texts of banned volunteers are withdrawn (`withdrawal`). The thresholds are guesses.
"""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any, Final

from django.conf import settings
from django.db import transaction

from scheduler.campaigns.models import Assignment, Contribution, Volunteer
from scheduler.models import SITE_ACTOR, Lease, Node
from scheduler.transitions import transition

AGREEMENTS_FOR_TRUST = 10
REJECTION_WINDOW = 40
"""Outputs in the moving average `rejection_rate`: 28 rejections in a row raise it from 0 to a half."""
MAX_REJECTION_RATE = 0.5
MAX_MISMATCHES = 3
MIN_DISAGREEMENTS = 8
HOUR = timedelta(hours=1)
MAX_ACTIVE = {Volunteer.State.NEW: 64, Volunteer.State.TRUSTED: 512}
"""Packets that a session may hold: 64 keep a GPU busy for minutes."""
ACCOUNT_QUOTA_FACTOR = 10
"""Hourly quota of new volunteers with an account, relative to those without."""
SUSPECT_KNOWN_ANSWER_RATE = 0.25
NO_COMPARISONS: Final[dict[str, Any]] = {"agreements_in_a_row": 0, "mismatches_in_a_row": 0}
MAX_REASON = 500
State = Volunteer.State


def get_volunteer(node: Node) -> Volunteer:
    """Return the volunteer of a node: its owner, or the node itself if it has none. Create it if needed."""
    if node.owner_id is not None:
        defaults = {"name": lambda: str(node.owner)[:80]}  # as long as the field
        return Volunteer.objects.get_or_create(user_id=node.owner_id, defaults=defaults)[0]
    return Volunteer.objects.get_or_create(node=node, defaults={"name": node.name})[0]


def compute_quota(volunteer: Volunteer, lease: Lease, active: int, wanted: int, now: datetime) -> int:
    """Return how many packets the volunteer may get now. `active`: packets that the lease holds."""
    if volunteer.state == State.TRUSTED or lease.node.trusted:
        return max(min(wanted, MAX_ACTIVE[State.TRUSTED] - active), 0)
    limit = settings.REPHRASE_NEW_PER_HOUR * (ACCOUNT_QUOTA_FACTOR if volunteer.user_id else 1)
    recent = Assignment.objects.filter(volunteer=volunteer, created_at__gt=now - HOUR)[:limit].count()
    return max(min(wanted, MAX_ACTIVE[State.NEW] - active, limit - recent), 0)


# --- evidence --------------------------------------------------------------------------------------------------------


def update_rejection_rate(contribution: Contribution, outputs: int, rejected: int) -> None:
    """Update the moving average with the latest outputs."""
    if outputs:
        weight = (1 - 1 / REJECTION_WINDOW) ** outputs
        contribution.rejection_rate = contribution.rejection_rate * weight + (1 - weight) * rejected / outputs


def record_comparison(volunteer: Volunteer, contribution: Contribution, agrees: bool, *, answer_is_known: bool) -> None:
    """Count one comparison. A replica that differs is no mismatch: the other text may be wrong."""
    if agrees:
        contribution.agreed += 1
        volunteer.agreements_in_a_row += 1
        volunteer.mismatches_in_a_row = 0
    else:
        contribution.disagreed += 1
        volunteer.agreements_in_a_row = 0
        volunteer.mismatches_in_a_row += 1 if answer_is_known else 0


def find_ban_reason(volunteer: Volunteer, contribution: Contribution) -> str:
    """Return why the volunteer should be banned; empty if there is no reason."""
    if contribution.rejection_rate > MAX_REJECTION_RATE:
        return "The checks rejected most of its latest texts."
    if volunteer.mismatches_in_a_row >= MAX_MISMATCHES:
        return f"{volunteer.mismatches_in_a_row} packets in a row did not match their known answers."
    if contribution.disagreed >= MIN_DISAGREEMENTS and contribution.disagreed > 3 * contribution.agreed:
        return "Its texts hardly ever agreed with those of others."
    return ""


def update_volunteer_state(volunteer: Volunteer, contribution: Contribution) -> None:
    """Save the counters, then trust, demote or ban the volunteer. Call inside a transaction."""
    volunteer.save(update_fields=["agreements_in_a_row", "mismatches_in_a_row"])
    reason = find_ban_reason(volunteer, contribution)
    if reason:
        # If only known answers speak against a trusted volunteer, these may be wrong.
        only_known_answers = contribution.rejection_rate <= MAX_REJECTION_RATE and not contribution.is_suspect
        is_trusted = volunteer.state == State.TRUSTED
        (demote_volunteer if is_trusted and only_known_answers else ban_volunteer)(volunteer, SITE_ACTOR, reason)
    elif volunteer.agreements_in_a_row >= AGREEMENTS_FOR_TRUST:
        trust_volunteer(volunteer, SITE_ACTOR, f"{volunteer.agreements_in_a_row} comparisons in a row agreed.")


# --- states ----------------------------------------------------------------------------------------------------------


def trust_volunteer(volunteer: Volunteer, actor: str, reason: str = "") -> bool:
    """Lift the quota of a new volunteer; return whether the state changed."""
    reason = reason or f"Trusted by {actor}."
    message, since = f"{volunteer.name} is trusted: {reason}", [State.NEW]
    return transition(volunteer, State.TRUSTED, since=since, actor=actor, message=message, reason=reason[:MAX_REASON])


def demote_volunteer(volunteer: Volunteer, actor: str, reason: str) -> bool:
    """Make a trusted volunteer new again; its texts stay. Return whether the state changed."""
    message = f"{volunteer.name} is no longer trusted: {reason}"
    fields = {"reason": reason[:MAX_REASON], **NO_COMPARISONS}
    return transition(volunteer, State.NEW, since=[State.TRUSTED], actor=actor, message=message, **fields)


def ban_volunteer(volunteer: Volunteer, actor: str, reason: str) -> bool:
    """Stop assigning packets; `withdrawal` withdraws the texts. Return whether the state changed."""
    message, since = f"{volunteer.name} is banned: {reason}", [State.NEW, State.TRUSTED]
    return transition(volunteer, State.BANNED, since=since, actor=actor, message=message, reason=reason[:MAX_REASON])


@transaction.atomic
def unban_volunteer(volunteer: Volunteer, actor: str) -> bool:
    """Make a banned volunteer new again; withdrawn texts stay withdrawn. Return whether the state changed."""
    message, fields = f"{volunteer.name} is no longer banned.", {"reason": "", **NO_COMPARISONS}
    unbanned = transition(volunteer, State.NEW, since=[State.BANNED], actor=actor, message=message, **fields)
    if unbanned:
        volunteer.contributions.update(rejection_rate=0.0, agreed=0, disagreed=0)
    return unbanned
