"""Returns assigned packets to the queue. Call inside the transaction that ends the lease."""

from __future__ import annotations

from collections.abc import Collection

from django.db import transaction
from django.utils import timezone

from scheduler.campaigns.models import Assignment, Campaign, Packet, Volunteer
from scheduler.models import Job, Lease

MAX_TIMES_ASSIGNED = 20
"""A packet that was assigned this often without a result is set aside."""
LOST = "lost"
"""Reason for setting aside a packet that no volunteer returned."""


def release_job(job: Job) -> int:
    """Release the packets assigned under a job's leases; return how many."""
    active = Assignment.objects.filter(lease__job=job, state=Assignment.State.ACTIVE)
    return release_assignments(active.select_related("packet"))


@transaction.atomic
def release_volunteer(volunteer: Volunteer) -> int:
    """Release a volunteer's packets; return how many."""
    active = Assignment.objects.filter(volunteer=volunteer, state=Assignment.State.ACTIVE)
    return release_assignments(active.select_related("packet"))


def release_packets(packets: Collection[int]) -> int:
    """Release these packets from the volunteers who write them; return how many. Call inside a transaction."""
    active = Assignment.objects.filter(packet__in=packets, state=Assignment.State.ACTIVE)
    return release_assignments(active.filter(purpose=Assignment.Purpose.WORK).select_related("packet"))


@transaction.atomic
def release_ended_leases() -> int:
    """Release packets of leases that ended without release; return how many. A safety net."""
    active = Assignment.objects.filter(state=Assignment.State.ACTIVE)
    return release_assignments(active.exclude(lease__state=Lease.State.ACTIVE).select_related("packet")[:1000])


def release_assignments(assignments: Collection[Assignment]) -> int:
    """Return these packets to the queue; return how many. Call inside a transaction."""
    assignments = list(assignments)
    if not assignments:
        return 0
    work = [one.packet_id for one in assignments if one.purpose == Assignment.Purpose.WORK]
    replicas = [one.packet_id for one in assignments if one.purpose == Assignment.Purpose.REPLICA]
    packets = Packet.objects.filter(pk__in=work, state=Packet.State.ASSIGNED)
    for packet in packets.filter(times_assigned__gte=MAX_TIMES_ASSIGNED).select_related("campaign"):
        set_packet_aside(packet, packet.campaign)
    packets.update(state=Packet.State.WAITING)
    replicated = Packet.objects.filter(pk__in=replicas, replication=Packet.Replication.ASSIGNED)
    replicated.update(replication=Packet.Replication.OPEN)
    active = Assignment.objects.filter(pk__in=[one.pk for one in assignments], state=Assignment.State.ACTIVE)
    return active.update(state=Assignment.State.RELEASED, ended_at=timezone.now())


def set_packet_aside(packet: Packet, campaign: Campaign) -> None:
    """Give up the missing outputs of a packet."""
    reasons = {(chunk, style): why for chunk, style, why in packet.missing or ()}
    missing = [[*key, reasons.get(key) or [LOST]] for key in packet.list_missing_outputs(campaign.styles)]
    assigned = Packet.objects.filter(pk=packet.pk, state=Packet.State.ASSIGNED)
    assigned.update(state=Packet.State.SET_ASIDE, missing=missing)
