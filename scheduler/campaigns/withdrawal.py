"""Withdraws the texts of banned volunteers, so that others write them.

Works in batches of packets, each in a transaction; an interrupted run resumes with the next. Shards that lose rows are
rewritten, and a campaign that was complete runs again. One that a maintainer finished early stays done.
"""

from __future__ import annotations

from collections.abc import Sequence

from django.db import transaction
from django.db.models import Count, F, Sum

from scheduler.campaigns import release, reputation, transitions
from scheduler.campaigns.models import Assignment, Campaign, Contribution, Packet, Rephrasing, Shard, Volunteer

PACKETS_PER_BATCH = 200
WITHDRAWN = "withdrawn"
"""Reason for a missing output that was there before."""


def withdraw_banned() -> int:
    """Withdraw the texts of all banned volunteers; return the number of packets. Idempotent."""
    banned = Volunteer.objects.filter(state=Volunteer.State.BANNED)
    states = [Assignment.State.SUBMITTED, Assignment.State.ACTIVE]
    return sum(withdraw_volunteer(volunteer) for volunteer in banned.filter(assignments__state__in=states).distinct())


def ban_and_withdraw(volunteer: Volunteer, actor: str) -> bool:
    """Ban a volunteer and withdraw the texts; return whether anything changed."""
    banned = reputation.ban_volunteer(volunteer, actor, f"Banned by {actor}.")
    return bool(withdraw_volunteer(volunteer)) or banned


def withdraw_volunteer(volunteer: Volunteer) -> int:
    """Withdraw all texts of a volunteer and release its packets; return the number of packets."""
    total = release.release_volunteer(volunteer)
    while count := withdraw_batch(volunteer):
        total += count
    return total


@transaction.atomic
def withdraw_batch(volunteer: Volunteer) -> int:
    """Withdraw the texts of some packets; return how many."""
    submitted = Assignment.objects.filter(volunteer=volunteer, state=Assignment.State.SUBMITTED)
    batch = dict(submitted.order_by("packet_id").values_list("pk", "packet_id")[:PACKETS_PER_BATCH])
    if not batch:
        return 0
    packets = Packet.objects.select_for_update(no_key=True).filter(pk__in=set(batch.values())).order_by("pk").in_bulk()
    texts = Rephrasing.objects.accepted().filter(volunteer=volunteer, packet__in=packets)
    withdrawn: dict[int, list[Rephrasing]] = {pk: [] for pk in packets}
    for row in texts.only("packet", "chunk", "style"):
        withdrawn[row.packet_id].append(row)
    campaigns = Campaign.objects.filter(pk__in={packet.campaign_id for packet in packets.values()})
    finished_early = [campaign.pk for campaign in campaigns if transitions.is_finished_early(campaign)]
    # Others may write these packets without the outputs that are withdrawn now: their results would be incomplete.
    release.release_packets([pk for pk, rows in withdrawn.items() if rows])
    for pk, packet in packets.items():
        reopen_packet(packet, withdrawn[pk])
    Shard.objects.filter(pk__in=texts.exclude(shard=None).values("shard")).update(version=F("version") + 1)
    for sums in texts.order_by().values("campaign").annotate(rows=Count("pk"), token_sum=Sum("tokens")):
        Contribution.objects.filter(campaign=sums["campaign"], volunteer=volunteer).update(
            withdrawn=F("withdrawn") + sums["rows"],
            accepted=F("accepted") - sums["rows"],
            tokens=F("tokens") - sums["token_sum"],
        )
    texts.update(state=Rephrasing.State.WITHDRAWN, shard=None)
    Assignment.objects.filter(pk__in=batch).update(state=Assignment.State.WITHDRAWN)
    for campaign in campaigns.exclude(pk__in=finished_early):
        transitions.reopen_campaign(campaign)
    return len(batch)


def reopen_packet(packet: Packet, withdrawn: Sequence[Rephrasing]) -> None:
    """Request the withdrawn outputs again; the volunteer's rejections no longer count as attempts."""
    packet.attempts = packet.times_assigned = 0
    if withdrawn:
        packet.missing = sorted([*(packet.missing or []), *([row.chunk, row.style, [WITHDRAWN]] for row in withdrawn)])
        if packet.replication != Packet.Replication.NONE:
            packet.replication = Packet.Replication.PLANNED
    if withdrawn or packet.state == Packet.State.SET_ASIDE:
        packet.state = Packet.State.WAITING
    packet.save(update_fields=["attempts", "times_assigned", "missing", "replication", "state"])
