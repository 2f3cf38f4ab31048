"""Giving packets to a sitting: the oldest that wait, some that another wrote too, and some whose answer is known.

Each kind is claimed in one statement for the whole batch; where the database can, it steps over what another claim has
just locked.
"""

from __future__ import annotations

import random

from django.db import connection, transaction
from django.db.models import BigIntegerField
from django.utils import timezone

from scheduler.campaigns import packet_orders, reputation
from scheduler.errors import LeaseEndedError, NotFoundError
from scheduler.models import Campaign, Handout, Lease, Packet, Share, Sitting, Volunteer
from scheduler.node_api import uploads
from scheduler.prepared import Later, Prepared
from trainer import protocol

WAIT_SECONDS = 5.0
LONG_WAIT_SECONDS = 60.0
SECONDS_IN = 4
"""One of so many packets of a batch, at most, is another's to be compared, as long as there is other work."""

PICK = """
WITH picked AS MATERIALIZED (
    SELECT p.id FROM scheduler_packet p
    WHERE p.campaign_id = %s AND {which}
        AND (SELECT COUNT(*) FROM scheduler_handout h WHERE h.packet_id = p.id AND {mine}) = 0
    ORDER BY p.campaign_id, p.id LIMIT %s {lock}
)
UPDATE scheduler_packet SET {changes} FROM picked WHERE scheduler_packet.id = picked.id
RETURNING {columns}
"""
"""Said so that PostgreSQL goes by the small indexes of what waits: a join, or an order by the number alone, has it look
through a million packets that are done first (0.8 s instead of a millisecond)."""
WAITING = {
    "which": "p.state = 'waiting'",
    "mine": "h.lease_id = %s",
    "changes": "state = 'held', handed_out = handed_out + 1",
}
"""Who has failed at a packet gets it again in another sitting only."""
FOR_TWO = {"which": "p.second = 'wanted'", "mine": "h.volunteer_id = %s", "changes": "second = 'held'"}


def take(lease: Lease, message: protocol.TakePackets) -> protocol.TakePacketsReply:
    """Return packets for the lease; first those that it holds and does not know of. Raise Over when it has ended."""
    if lease.state != Lease.State.ACTIVE:
        raise LeaseEndedError
    campaign, volunteer = campaign_of(lease), reputation.volunteer_of(lease.node)
    if reason := closed(campaign, volunteer):
        return protocol.TakePacketsReply(done=reason)
    holding = Handout.objects.filter(lease=lease, state=Handout.State.HELD).order_by("pk")
    known = set(message.held)
    held = list(holding.values_list("packet_id", flat=True))
    missed = [pk for pk in held if pk not in known]
    again = [
        packet_orders.message(handout.packet, campaign, handout.purpose)
        for handout in (holding.filter(packet__in=missed).select_related("packet") if missed else ())
    ]
    count = reputation.room(volunteer, lease, len(held), message.count, timezone.now())
    given = give(lease, campaign, volunteer, count) if count else []
    packets = (*again, *(packet_orders.message(packet, campaign, purpose) for packet, purpose in given))
    if packets:
        return protocol.TakePacketsReply(packets=packets)
    return nothing(campaign, limited=count == 0 and message.count > 0, holds=bool(held))


# Without the names of its files: of a large source there are thousands.
OF_JOB = Prepared(
    lambda: (
        Sitting.objects.select_related("campaign")
        .defer("campaign__files")
        .filter(job=Later("job", BigIntegerField()))
        .order_by()
    )
)


def campaign_of(lease: Lease) -> Campaign:
    """Return for which campaign a lease is; raise Missing where it is for none."""
    sitting = OF_JOB.first(job=lease.job_id)
    if sitting is None:
        raise NotFoundError("This lease is no sitting: there are no packets under it.")
    return sitting.campaign


def closed(campaign: Campaign, volunteer: Volunteer) -> str:
    """Return why this volunteer gets nothing now; empty where there is no reason."""
    if volunteer.state == Volunteer.State.BARRED:
        return f"Nothing more is given to {volunteer.name}: {volunteer.reason} Ask the site's people if that is wrong."
    if campaign.state == Campaign.State.RUNNING:
        return ""
    words = {Campaign.State.PAUSED: "is paused", Campaign.State.DONE: "is done: thank you"}
    return f"The campaign {campaign.name} {words.get(Campaign.State(campaign.state), 'has not begun')}."


def nothing(campaign: Campaign, *, limited: bool, holds: bool) -> protocol.TakePacketsReply:
    """Return the answer where there is none."""
    if limited:
        return protocol.TakePacketsReply(wait_seconds=LONG_WAIT_SECONDS if not holds else WAIT_SECONDS)
    if not campaign.exhausted or campaign.packets.filter(state=Packet.State.HELD).exists():
        return protocol.TakePacketsReply(
            wait_seconds=WAIT_SECONDS
        )  # the producer makes more, or a volunteer hands one back
    return protocol.TakePacketsReply(done=f"Nothing of {campaign.name} waits any more: thank you.")


@transaction.atomic
def give(lease: Lease, campaign: Campaign, volunteer: Volunteer, count: int) -> list[tuple[Packet, str]]:
    """Claim up to so many packets, and note whose they are."""
    uploads.lock_active_lease(lease)
    known = known_ones(campaign, volunteer, lease, count)
    room = count - len(known)
    seconds = claim(FOR_TWO, campaign, volunteer.pk, min(max(room // SECONDS_IN, 1), room))
    work = claim(WAITING, campaign, lease.pk, room - len(seconds))
    seconds += claim(FOR_TWO, campaign, volunteer.pk, room - len(seconds) - len(work))
    given = [
        *((packet, Handout.Purpose.WORK.value) for packet in work),
        *((packet, Handout.Purpose.SECOND.value) for packet in seconds),
        *((packet, Handout.Purpose.KNOWN.value) for packet in known),
    ]
    Handout.objects.bulk_create(
        Handout(packet=packet, lease=lease, volunteer=volunteer, purpose=purpose) for packet, purpose in given
    )
    random.shuffle(given)  # nobody can tell them apart by their places
    return given


def claim(how: dict[str, str], campaign: Campaign, mine: int, count: int) -> list[Packet]:
    """Claim the first packets of a kind, in one statement."""
    if count <= 0:
        return []
    lock = "FOR UPDATE OF p SKIP LOCKED" if connection.features.has_select_for_update_skip_locked else ""
    columns = ", ".join(f"scheduler_packet.{field.column}" for field in Packet._meta.concrete_fields)
    statement = PICK.format(**how, lock=lock, columns=columns)
    return sorted(Packet.objects.raw(statement, [campaign.pk, mine, count]), key=lambda packet: packet.pk)


def known_ones(campaign: Campaign, volunteer: Volunteer, lease: Lease, count: int) -> list[Packet]:
    """Return a few packets whose answer is known, drawn at random, that this volunteer has never had."""
    share = Share.objects.filter(campaign=campaign, volunteer=volunteer).first()
    chance = reputation.SUSPECT_KNOWN_SHARE if reputation.is_suspect(share) else campaign.known_share
    wanted = sum(random.random() < chance for _ in range(count))
    if not wanted:
        return []
    agreed = campaign.packets.filter(second=Packet.Second.AGREED).exclude(handouts__volunteer=volunteer)
    last = agreed.order_by("-campaign_id", "-pk").values_list("pk", flat=True).first()
    if last is None:
        return []
    first = agreed.order_by("campaign_id", "pk").values_list("pk", flat=True)[0]
    places = [random.randint(first, last) for _ in range(wanted)]
    found = (agreed.filter(pk__gte=place).order_by("campaign_id", "pk").first() for place in places)
    return list({packet.pk: packet for packet in found if packet is not None}.values())
