"""What a sitting holds when it ends goes back to the others. Called inside the transaction that ends the lease."""

from __future__ import annotations

from collections.abc import Collection

from django.db import transaction
from django.utils import timezone

from scheduler.campaigns import packet_orders
from scheduler.models import Campaign, Handout, Job, Lease, Packet, Volunteer

MOST_HANDED_OUT = 20
"""A packet that was given out so often and never came back is not given out for ever."""
LOST = "lost"
"""Its reason then: every volunteer who had it was gone before handing it in."""


def of_job(job: Job) -> int:
    """Take back what a job's leases hold; return how many packets."""
    return back(list(Handout.objects.filter(lease__job=job, state=Handout.State.HELD).select_related("packet")))


@transaction.atomic
def of_volunteer(volunteer: Volunteer) -> int:
    """Take back what a volunteer holds."""
    held = Handout.objects.filter(volunteer=volunteer, state=Handout.State.HELD)
    return back(list(held.select_related("packet")))


@transaction.atomic
def of_ended_leases() -> int:
    """Take back what was left by leases that ended without a word to us. A net below the others."""
    left = Handout.objects.filter(state=Handout.State.HELD).exclude(lease__state=Lease.State.ACTIVE)
    return back(list(left.select_related("packet")[:1000]))


def back(held: Collection[Handout]) -> int:
    """Let others have these packets. Bring a transaction."""
    ids = [handout.pk for handout in held]
    if not ids:
        return 0
    of = {purpose: [one.packet_id for one in held if one.purpose == purpose] for purpose in Handout.Purpose}
    mine = Packet.objects.filter(pk__in=of[Handout.Purpose.WORK], state=Packet.State.HELD)
    worn = list(mine.filter(handed_out__gte=MOST_HANDED_OUT).select_related("campaign"))
    for packet in worn:
        set_aside(packet, packet.campaign)
    mine.exclude(pk__in=[packet.pk for packet in worn]).update(state=Packet.State.WAITING)
    seconds = Packet.objects.filter(pk__in=of[Handout.Purpose.SECOND], second=Packet.Second.HELD)
    seconds.update(second=Packet.Second.WANTED)
    ours = Handout.objects.filter(pk__in=ids, state=Handout.State.HELD)
    return ours.update(state=Handout.State.BACK, answered_at=timezone.now())


def set_aside(packet: Packet, campaign: Campaign) -> None:
    """Give up what a packet lacks."""
    reasons = {(row[0], row[1]): row[2] for row in packet.lacking or ()}
    lacking = [[*pair, reasons.get(pair) or [LOST]] for pair in packet_orders.lacking(packet, campaign)]
    Packet.objects.filter(pk=packet.pk, state=Packet.State.HELD).update(state=Packet.State.ASIDE, lacking=lacking)
