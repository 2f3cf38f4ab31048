"""A volunteer was found out: everything they wrote is withdrawn, and somebody else writes it.

In steps of some packets, each a transaction, until none is left: whoever is killed in between, the next round goes on.
A shard that loses rows is written anew; a campaign that was done goes on.
"""

from __future__ import annotations

from collections.abc import Iterable

from django.db import transaction
from django.db.models import F

from scheduler.campaigns import release, transitions
from scheduler.models import Campaign, Handout, Packet, Rephrasing, Shard, Share, Volunteer

PACKETS = 200
"""In one step."""
WITHDRAWN = "withdrawn"
"""Why a chunk is lacking that was there before."""


def withdraw_all() -> int:
    """Withdraw what barred volunteers wrote; return how many packets were touched. Safe to run at any time."""
    barred = Volunteer.objects.filter(state=Volunteer.State.BARRED)
    bad = barred.filter(handouts__state__in=[Handout.State.TAKEN, Handout.State.HELD]).distinct()
    return sum(withdraw(volunteer) for volunteer in bad)


def withdraw(volunteer: Volunteer) -> int:
    """Withdraw all that a volunteer wrote; return how many packets were touched."""
    total = release.of_volunteer(volunteer)
    while touched := step(volunteer):
        total += touched
    return total


@transaction.atomic
def step(volunteer: Volunteer) -> int:
    """Withdraw some packets of a volunteer's work; return how many."""
    taken = Handout.objects.filter(volunteer=volunteer, state=Handout.State.TAKEN)
    some = dict(taken.order_by("packet_id").values_list("pk", "packet_id")[:PACKETS])
    if not some:
        return 0
    packets = Packet.objects.select_for_update(no_key=True).filter(pk__in=set(some.values())).order_by("pk").in_bulk()
    mine = Rephrasing.objects.filter(volunteer=volunteer, state=Rephrasing.State.ACCEPTED, packet__in=packets)
    lost: dict[int, list[Rephrasing]] = {pk: [] for pk in packets}
    for row in mine.defer("text"):
        lost[row.packet_id].append(row)
    for pk, packet in packets.items():
        reopen(packet, lost[pk])
    rows = [row for group in lost.values() for row in group]
    Shard.objects.filter(pk__in={row.shard_id for row in rows if row.shard_id}).update(version=F("version") + 1)
    mine.update(state=Rephrasing.State.WITHDRAWN, shard=None)
    count(volunteer, rows)
    Handout.objects.filter(pk__in=some).update(state=Handout.State.VOID)
    for pk in {packet.campaign_id for packet in packets.values()}:
        transitions.reopen(Campaign.objects.get(pk=pk))
    return len(some)


def reopen(packet: Packet, lost: Iterable[Rephrasing]) -> None:
    """Let a packet be written again where it has lost something; rejections of the bad one's count no more."""
    again = [[row.chunk, row.style, [WITHDRAWN]] for row in lost]
    packet.tries = packet.handed_out = 0
    if again:
        packet.lacking = sorted([*(packet.lacking or []), *again])
        packet.second = Packet.Second.NO if packet.second == Packet.Second.NO else Packet.Second.LATER
    if packet.state == Packet.State.ASIDE or (packet.state == Packet.State.DONE and again):
        packet.state = Packet.State.WAITING
    packet.save(update_fields=["tries", "handed_out", "lacking", "second", "state"])


def count(volunteer: Volunteer, rows: Iterable[Rephrasing]) -> None:
    lost: dict[int, list[Rephrasing]] = {}
    for row in rows:
        lost.setdefault(row.campaign_id, []).append(row)
    for campaign, gone in lost.items():
        Share.objects.filter(campaign=campaign, volunteer=volunteer).update(
            withdrawn=F("withdrawn") + len(gone),
            accepted=F("accepted") - len(gone),
            tokens=F("tokens") - sum(row.tokens for row in gone),
        )
