"""Who is believed, and how much is given to whom. The rules are guesses, written down in one place.

- Who is new gets little at a time and in an hour. After ten comparisons in a row that agreed (BOINC's number; Anderson
  2019, section 3.2), or on a maintainer's word, a volunteer is known; so are trusted nodes.
- Of whose latest outputs more than half were rejected is barred. So is who was wrong three times in a row about packets
  whose answer two others had agreed on, or who hardly ever agrees with anybody.
- Who is known and wrong three times in a row begins anew, and what they doubt counts as known no more: two volunteers
  may have agreed on nonsense, and nobody honest is to be barred for it.
- Two who disagree may both be honest: neither is blamed, and both get more packets with a known answer for a while.

Whatever a barred volunteer wrote is withdrawn (`withdrawal`).
"""

from __future__ import annotations

from datetime import datetime, timedelta

from django.conf import settings
from django.db import transaction
from django.db.models import BigIntegerField

from scheduler.models import Event, Handout, Node, Share, Volunteer
from scheduler.models.jobs import Lease
from scheduler.prepared import Later, Prepared

RIGHT_BEFORE_KNOWN = 10
LATELY = 40
"""Outputs over which `Share.failing` forgets: 28 rejected ones in a row take it over a half."""
MOST_FAILING = 0.5
MOST_WRONG = 3
FEWEST_DISAGREEMENTS = 8
HOUR = timedelta(hours=1)
AT_ONCE = {Volunteer.State.NEW: 64, Volunteer.State.KNOWN: 512}
"""Packets that a sitting may hold: 64 keep a card busy for minutes."""
SIGNED_IN = 10
"""Times as many packets an hour as for those whom nobody knows."""
SUSPECT_KNOWN_SHARE = 0.25
SITE = "site"


OF_USER = Prepared(lambda: Volunteer.objects.filter(user=Later("user", BigIntegerField())).order_by("pk")[:1])
OF_NODE = Prepared(lambda: Volunteer.objects.filter(node=Later("node", BigIntegerField())).order_by("pk")[:1])


def volunteer_of(node: Node) -> Volunteer:
    """Return whose work a node's is: its owner's, or its own where nobody has signed in for it."""
    if node.owner_id is not None:
        known = OF_USER.first(user=node.owner_id)
        return (
            known
            or Volunteer.objects.get_or_create(
                user_id=node.owner_id, defaults={"name": node.owner.get_username() if node.owner else node.name}
            )[0]
        )
    known = OF_NODE.first(node=node.pk)
    return known or Volunteer.objects.get_or_create(node=node, defaults={"name": node.name})[0]


# --- how much --------------------------------------------------------------------------------------------------------


def is_known(volunteer: Volunteer, node: Node) -> bool:
    return volunteer.state == Volunteer.State.KNOWN or node.trusted


def room(volunteer: Volunteer, lease: Lease, held: int, wanted: int, now: datetime) -> int:
    """Return how many packets may be given now. One query for whoever is new."""
    if is_known(volunteer, lease.node):
        return max(min(wanted, AT_ONCE[Volunteer.State.KNOWN] - held), 0)
    limit = settings.REPHRASE_NEW_PER_HOUR * (SIGNED_IN if volunteer.user_id else 1)
    lately = Handout.objects.filter(volunteer=volunteer, at__gt=now - HOUR)[:limit].count()
    return max(min(wanted, AT_ONCE[Volunteer.State.NEW] - held, limit - lately), 0)


def is_suspect(share: Share | None) -> bool:
    """Whether others' work disagreed with this volunteer's more often than not."""
    return share is not None and share.disagreed > share.agreed


# --- how good --------------------------------------------------------------------------------------------------------


def fails(share: Share, outputs: int, rejected: int) -> None:
    """Let the share of failures follow what was handed in just now."""
    if outputs:
        kept = (1 - 1 / LATELY) ** outputs
        share.failing = share.failing * kept + (1 - kept) * rejected / outputs


def compared(volunteer: Volunteer, share: Share, agrees: bool, *, answer_is_known: bool) -> None:
    """Note one comparison. A second opinion that differs makes nobody wrong: it may be the other one."""
    if agrees:
        share.agreed += 1
        volunteer.right_in_a_row += 1
        volunteer.wrong_in_a_row = 0
    else:
        share.disagreed += 1
        volunteer.right_in_a_row = 0
        volunteer.wrong_in_a_row += 1 if answer_is_known else 0


def verdict(volunteer: Volunteer, share: Share) -> str:
    """Return why the volunteer has to be barred; empty if there is no reason to."""
    if share.failing > MOST_FAILING:
        return "Most of what it handed in lately was rejected by the checks."
    if volunteer.wrong_in_a_row >= MOST_WRONG:
        return f"{volunteer.wrong_in_a_row} packets in a row whose answer is known came back otherwise."
    if share.disagreed >= FEWEST_DISAGREEMENTS and share.disagreed > 3 * share.agreed:
        return "What it wrote hardly ever agreed with what others wrote."
    return ""


def is_doubtful(volunteer: Volunteer, share: Share) -> bool:
    """Whether nothing but known answers speaks against a known volunteer: two may have agreed on nonsense."""
    return volunteer.state == Volunteer.State.KNOWN and share.failing <= MOST_FAILING and not is_suspect(share)


def settle(volunteer: Volunteer, share: Share) -> None:
    """Keep what was noted, and draw the consequences. Bring the transaction."""
    volunteer.save(update_fields=["right_in_a_row", "wrong_in_a_row"])
    reason = verdict(volunteer, share)
    if reason and is_doubtful(volunteer, share):
        doubt(volunteer, SITE, reason)
    elif reason:
        bar(volunteer, SITE, reason)
    elif volunteer.right_in_a_row >= RIGHT_BEFORE_KNOWN:
        believe(volunteer, SITE, f"{volunteer.right_in_a_row} comparisons in a row agreed.")


# --- states ----------------------------------------------------------------------------------------------------------


def believe(volunteer: Volunteer, by: str, why: str = "") -> bool:
    """Give a new volunteer as much as can be done."""
    return change(volunteer, Volunteer.State.KNOWN, [Volunteer.State.NEW], by, f"{volunteer.name} is known: {why}", why)


@transaction.atomic
def doubt(volunteer: Volunteer, by: str, why: str) -> bool:
    """Let a known volunteer begin anew; what they wrote stays."""
    sentence = f"{volunteer.name} is no longer known: {why}"
    changed = change(volunteer, Volunteer.State.NEW, [Volunteer.State.KNOWN], by, sentence, why)
    if changed:
        volunteer.right_in_a_row = volunteer.wrong_in_a_row = 0
        volunteer.save(update_fields=["right_in_a_row", "wrong_in_a_row"])
    return changed


def bar(volunteer: Volunteer, by: str, why: str) -> bool:
    """Give nothing any more; what was written is withdrawn with the next round (`withdrawal.withdraw_all`)."""
    since = [Volunteer.State.NEW, Volunteer.State.KNOWN]
    return change(volunteer, Volunteer.State.BARRED, since, by, f"{volunteer.name} is barred: {why}", why)


@transaction.atomic
def pardon(volunteer: Volunteer, by: str) -> bool:
    """Let a barred volunteer begin anew. What was withdrawn stays so."""
    sentence = f"{volunteer.name} may write again."
    changed = change(volunteer, Volunteer.State.NEW, [Volunteer.State.BARRED], by, sentence, "")
    if changed:
        Volunteer.objects.filter(pk=volunteer.pk).update(right_in_a_row=0, wrong_in_a_row=0)
        Share.objects.filter(volunteer=volunteer).update(failing=0.0, agreed=0, disagreed=0)
        volunteer.refresh_from_db()
    return changed


@transaction.atomic
def change(
    volunteer: Volunteer, to: Volunteer.State, since: list[Volunteer.State], by: str, sentence: str, why: str
) -> bool:
    changed = Volunteer.objects.filter(pk=volunteer.pk, state__in=since).update(state=to, reason=why[:500])
    if changed:
        volunteer.state, volunteer.reason = to, why[:500]
        Event.record(by, volunteer, sentence)
    return changed == 1
