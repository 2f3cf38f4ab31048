"""Assigns packets to sessions: waiting packets, some replicas, and some packets with a known answer.

PostgreSQL skips the rows that a concurrent claim has locked.
"""

from __future__ import annotations

import random
from typing import Any

from django.db import transaction
from django.db.models import Exists, F, OuterRef, QuerySet
from django.utils import timezone

from scheduler import uploads
from scheduler.campaigns import messages, reputation
from scheduler.campaigns.models import Assignment, Campaign, Contribution, Packet, Volunteer
from scheduler.campaigns.sessions import get_campaign
from scheduler.errors import LeaseEndedError
from scheduler.models import Lease
from trainer import protocol

WAIT_SECONDS = 5.0
QUOTA_WAIT_SECONDS = 60.0
"""Wait of a volunteer who has used up the hourly quota."""
WORK_PER_REPLICA = 4
"""Packets per replica: while other packets wait, at most one in this many is a replica."""


def take_packets(lease: Lease, message: protocol.TakePackets) -> protocol.TakePacketsReply:
    """Return packets for a lease; first those it holds but the volunteer did not name. Raise LeaseEndedError."""
    if lease.state != Lease.State.ACTIVE:
        raise LeaseEndedError
    campaign, volunteer = get_campaign(lease), reputation.get_volunteer(lease.node)
    if reason := find_obstacle(campaign, volunteer):
        return protocol.TakePacketsReply(done=reason)
    held = Assignment.objects.filter(lease=lease, state=Assignment.State.ACTIVE).order_by("pk")
    active = list(held.values_list("packet", flat=True))
    lost = held.exclude(packet__in=message.held).select_related("packet") if set(active) - set(message.held) else ()
    assigned = [(one.packet, one.purpose) for one in lost]
    count = reputation.compute_quota(volunteer, lease, len(active), message.count, timezone.now())
    if count:
        assigned += assign_packets(lease, campaign, volunteer, count)
    if assigned:
        chunks = [(packet, messages.build_chunks(packet, campaign, purpose)) for packet, purpose in assigned]
        packets = (protocol.Packet(packet=packet.pk, document=packet.document, chunks=each) for packet, each in chunks)
        return protocol.TakePacketsReply(packets=tuple(packets))
    if count == 0 and message.count > 0:
        return protocol.TakePacketsReply(wait_seconds=WAIT_SECONDS if active else QUOTA_WAIT_SECONDS)
    if not campaign.is_exhausted or campaign.packets.filter(state=Packet.State.ASSIGNED).exists():
        # The producer creates more, or another volunteer's packets return.
        return protocol.TakePacketsReply(wait_seconds=WAIT_SECONDS)
    return protocol.TakePacketsReply(done=f"{campaign.name} has no packets left. Thank you!")


def find_obstacle(campaign: Campaign, volunteer: Volunteer) -> str:
    """Return why this volunteer gets no packets; empty if there is no reason."""
    if volunteer.state == Volunteer.State.BANNED:
        return f"{volunteer.name} is banned: {volunteer.reason} Contact the site's maintainers if this is a mistake."
    if campaign.state == Campaign.State.RUNNING:
        return ""
    status = {Campaign.State.PAUSED: "is paused", Campaign.State.DONE: "is done. Thank you!"}
    return f"The campaign {campaign.name} {status.get(Campaign.State(campaign.state), 'has not started')}."


@transaction.atomic
def assign_packets(lease: Lease, campaign: Campaign, volunteer: Volunteer, count: int) -> list[tuple[Packet, str]]:
    """Claim up to `count` packets and record their assignments; return each with its purpose."""
    uploads.lock_active_lease(lease)
    known = select_known_answers(campaign, volunteer, count)
    room = count - len(known)
    replicas = claim_replicas(campaign, volunteer, min(max(room // WORK_PER_REPLICA, 1), room))
    work = claim_waiting(campaign, lease, room - len(replicas))
    replicas += claim_replicas(campaign, volunteer, room - len(replicas) - len(work))
    assigned = [
        *((packet, Assignment.Purpose.WORK.value) for packet in work),
        *((packet, Assignment.Purpose.REPLICA.value) for packet in replicas),
        *((packet, Assignment.Purpose.KNOWN_ANSWER.value) for packet in known),
    ]
    Assignment.objects.bulk_create(
        Assignment(packet=packet, lease=lease, volunteer=volunteer, purpose=purpose) for packet, purpose in assigned
    )
    random.shuffle(assigned)  # the order must not reveal the purpose
    return assigned


def claim_waiting(campaign: Campaign, lease: Lease, count: int) -> list[Packet]:
    """Claim the oldest waiting packets that this lease has not had before."""
    had = Assignment.objects.filter(packet=OuterRef("pk"), lease=lease)
    waiting = campaign.packets.filter(~Exists(had), state=Packet.State.WAITING)
    packets = lock_packets(waiting, count)
    claimed = Packet.objects.filter(pk__in=[packet.pk for packet in packets])
    claimed.update(state=Packet.State.ASSIGNED, times_assigned=F("times_assigned") + 1)
    return packets


def claim_replicas(campaign: Campaign, volunteer: Volunteer, count: int) -> list[Packet]:
    """Claim the oldest packets to replicate that this volunteer has not had before."""
    had = Assignment.objects.filter(packet=OuterRef("pk"), volunteer=volunteer)
    packets = lock_packets(campaign.packets.filter(~Exists(had), replication=Packet.Replication.OPEN), count)
    claimed = Packet.objects.filter(pk__in=[packet.pk for packet in packets])
    claimed.update(replication=Packet.Replication.ASSIGNED)
    return packets


def lock_packets(candidates: QuerySet[Packet, Any], count: int) -> list[Packet]:
    """Lock and return the first `count` packets that no concurrent claim has locked."""
    if count <= 0:
        return []
    locked = candidates.select_for_update(skip_locked=True, of=("self",), no_key=True)
    # The leading column keeps PostgreSQL on the partial indexes: by `id` alone it scans all finished packets.
    return list(locked.order_by("campaign_id", "pk")[:count])


def select_known_answers(campaign: Campaign, volunteer: Volunteer, count: int) -> list[Packet]:
    """Return a random few packets with a known answer that this volunteer has never had."""
    contribution = Contribution.objects.filter(campaign=campaign, volunteer=volunteer).first()
    suspect = contribution is not None and contribution.is_suspect
    rate = reputation.SUSPECT_KNOWN_ANSWER_RATE if suspect else campaign.known_answer_rate
    wanted = sum(random.random() < rate for _ in range(count))
    if not wanted:
        return []
    agreed = campaign.packets.filter(replication=Packet.Replication.AGREED).exclude(assignments__volunteer=volunteer)
    agreed = agreed.order_by("campaign_id", "pk")
    first, last = agreed.first(), agreed.last()
    if first is None or last is None:
        return []
    starts = [random.randint(first.pk, last.pk) for _ in range(wanted)]
    found = (agreed.filter(pk__gte=start).first() for start in starts)
    return list({packet.pk: packet for packet in found if packet is not None}.values())
