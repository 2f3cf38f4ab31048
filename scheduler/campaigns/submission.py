"""Taking packets in: everything that a volunteer says is looked at again, by the same checks, before anything counts.

A result counts once, for the lease that holds its packet: what is sent again gets the answer that it got, what
somebody else replays gets none. The texts are judged before the transaction, which only writes.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime

from django.db import transaction
from django.utils import timezone

from scheduler.campaigns import packet_orders, release, reputation
from scheduler.campaigns.assignment import campaign_of
from scheduler.campaigns.packet_orders import Pair
from scheduler.models import Campaign, Handout, Lease, Packet, Rephrasing, Share, Volunteer
from scheduler.node_api import uploads
from trainer import protocol
from trainer.rephrase import checks
from trainer.rephrase.checks import similarity

ALIKE = 0.2
"""Cosine of character 3-grams of two texts in one style of one chunk, at least: as far as "easy" may be from its
source. A guess."""
AGREEING = 0.6
"""Share of a packet's outputs on which two volunteers have to agree."""
DUPLICATE = "duplicate"
TOO_LONG = "prompt_too_long"
"""A volunteer's own word, and honest: it counts for nobody's failing."""


@dataclass(frozen=True)
class Rules:
    """What a campaign's results are judged by."""

    campaign: Campaign
    order: protocol.RephraseOrder
    thresholds: Mapping[str, checks.Thresholds]


@dataclass
class Judged:
    """A result that was looked at, before it counts."""

    handout: Handout
    result: protocol.RephrasedPacket
    refusals: tuple[str, ...] = ()
    outputs: dict[Pair, checks.CheckResult] = field(default_factory=dict)

    @property
    def is_work(self) -> bool:
        """Whether it counts; otherwise it is only compared, and may well be what another wrote word for word."""
        return self.handout.purpose == Handout.Purpose.WORK

    @property
    def accepted(self) -> set[Pair]:
        return {pair for pair, judgement in self.outputs.items() if judgement.accepted}

    def reject(self, pair: Pair, reason: str) -> None:
        self.outputs[pair] = replace(self.outputs[pair], accepted=False, reasons=(reason,))


def submit(lease: Lease, message: protocol.SubmitPackets) -> protocol.SubmitPacketsReply:
    """Take in a batch; return a verdict for each. Raise Over when the lease has ended."""
    campaign, volunteer = campaign_of(lease), reputation.volunteer_of(lease.node)
    ids = {result.packet for result in message.results}
    handouts = Handout.objects.filter(lease=lease, packet__in=ids).select_related("packet")
    mine = {handout.packet_id: handout for handout in handouts}
    judged: dict[int, Judged] = {}
    if volunteer.state != Volunteer.State.BARRED:
        rules = Rules(campaign, packet_orders.order(campaign), checks.merge_thresholds(campaign.thresholds))
        for result in message.results:
            handout = mine.get(result.packet)
            if handout is not None and handout.state == Handout.State.HELD and result.packet not in judged:
                judged[result.packet] = look(handout, result, rules)
        reject_duplicates([one for one in judged.values() if one.is_work], campaign)
    counted = count(lease, campaign, volunteer, judged) if judged else set()
    told = {pk: verdict(judged[pk]) for pk in counted}
    told |= remembered([handout for pk, handout in mine.items() if pk not in counted])
    gone = (protocol.PacketVerdict(packet=result.packet, state="gone") for result in message.results)
    return protocol.SubmitPacketsReply(verdicts=tuple(told.get(verdict.packet, verdict) for verdict in gone))


# --- looking ---------------------------------------------------------------------------------------------------------


def look(handout: Handout, result: protocol.RephrasedPacket, rules: Rules) -> Judged:
    """Judge a result by its envelope, then each of its outputs by its text."""
    packet = handout.packet
    given = list(packet_orders.chunks(packet, packet_orders.wanted(packet, rules.campaign, handout.purpose)))
    judged = Judged(handout, result, checks.check_envelope(result, given, rules.order))
    if not judged.refusals:
        for output in result.outputs:
            judged.outputs[pair_of(output)] = judge(output, packet_orders.source(packet, output.chunk), rules)
    return judged


def judge(output: protocol.RephraseOutput, source: str, rules: Rules) -> checks.CheckResult:
    if output.ended == "none":
        trouble = output.trouble if output.trouble in checks.REASONS else "empty"
        return checks.CheckResult(False, (trouble,))
    language = rules.campaign.language
    return checks.check_output(
        source, output.style, output.text, ended=output.ended, language=language, thresholds=rules.thresholds
    )


def reject_duplicates(judged: Sequence[Judged], campaign: Campaign) -> None:
    """Reject what was written before, by anybody, and what comes twice in the batch. One query."""
    keys = {(index, pair): one.outputs[pair].key for index, one in enumerate(judged) for pair in sorted(one.accepted)}
    accepted = Rephrasing.objects.filter(campaign=campaign, state=Rephrasing.State.ACCEPTED)
    seen = set(accepted.filter(key__in=set(keys.values())).values_list("key", flat=True)) if keys else set()
    for (index, pair), key in keys.items():
        if key in seen:
            judged[index].reject(pair, DUPLICATE)
        seen.add(key)


# --- counting --------------------------------------------------------------------------------------------------------


@transaction.atomic
def count(lease: Lease, campaign: Campaign, volunteer: Volunteer, judged: Mapping[int, Judged]) -> set[int]:
    """Let results count; return those packets whose did: the lease still held them."""
    uploads.lock_active_lease(lease)
    packets = Packet.objects.select_for_update(no_key=True).filter(pk__in=judged).order_by("pk").in_bulk()
    held = Handout.objects.select_for_update(no_key=True).filter(
        lease=lease, packet__in=judged, state=Handout.State.HELD
    )
    still = sorted(held.values_list("packet_id", flat=True))
    if not still:
        return set()
    now = timezone.now()
    taken = [judged[pk] for pk in still if not judged[pk].refusals]
    refused = [judged[pk] for pk in still if judged[pk].refusals]
    work = [one for one in taken if one.is_work]
    compared = [one for one in taken if not one.is_work]
    others = written_by_others(compared, volunteer)
    people = People(campaign, volunteer, {row.volunteer_id for texts in others.values() for row in texts})
    refuse(refused, now)
    settle_work(work, packets, campaign)
    for one in compared:
        compare(one, packets[one.handout.packet_id], others[one.handout.packet_id], people)
    Rephrasing.objects.bulk_create(row for one in taken for row in rows(one, campaign, volunteer, now))
    mine = Handout.objects.filter(pk__in=[one.handout.pk for one in taken])
    mine.update(state=Handout.State.TAKEN, answered_at=now)
    note(people.share, taken, refused, now)
    people.settle()
    return set(still)


class People:
    """The volunteer who hands in and those whose work is compared: their rows, locked in one order for everybody."""

    def __init__(self, campaign: Campaign, volunteer: Volunteer, others: Collection[int]) -> None:
        everybody = {volunteer.pk, *others}
        Share.objects.get_or_create(campaign=campaign, volunteer=volunteer)
        locked = Volunteer.objects.select_for_update(no_key=True).filter(pk__in=everybody).order_by("pk")
        self.volunteers = locked.in_bulk()
        shares = (
            Share.objects.select_for_update(no_key=True)
            .filter(campaign=campaign, volunteer__in=everybody)
            .order_by("pk")
        )
        self.shares = {share.volunteer_id: share for share in shares}
        self.volunteer, self.share = self.volunteers[volunteer.pk], self.shares[volunteer.pk]

    def compared(self, pk: int, agrees: bool, *, answer_is_known: bool) -> None:
        reputation.compared(self.volunteers[pk], self.shares[pk], agrees, answer_is_known=answer_is_known)

    def settle(self) -> None:
        for pk, share in self.shares.items():
            share.save()
            reputation.settle(self.volunteers[pk], share)


def refuse(refused: Sequence[Judged], now: datetime) -> None:
    """Let others have the packets that came back made with something else."""
    release.back([one.handout for one in refused])
    for one in refused:
        Handout.objects.filter(pk=one.handout.pk).update(
            state=Handout.State.REFUSED, reasons=list(one.refusals), answered_at=now
        )


def rows(judged: Judged, campaign: Campaign, volunteer: Volunteer, now: datetime) -> Iterable[Rephrasing]:
    """Yield what is kept of a result: every output, with whose it is and what was said of it."""
    good = Rephrasing.State.ACCEPTED if judged.is_work else Rephrasing.State.SPARE
    for output in judged.result.outputs:
        judgement = judged.outputs[output.chunk, output.style]
        yield Rephrasing(
            campaign=campaign,
            packet_id=judged.handout.packet_id,
            handout=judged.handout,
            volunteer=volunteer,
            chunk=output.chunk,
            style=output.style,
            state=good if judgement.accepted else Rephrasing.State.REJECTED,
            reasons=list(judgement.reasons),
            text=judgement.text,
            sha256=output.sha256 if judgement.text == output.text else packet_orders.sha256(judgement.text),
            source_sha256=output.source_sha256,
            key=judgement.key,
            tokens=output.tokens,
            back_end=judged.result.back_end,
            at=now,
        )


def settle_work(taken: Sequence[Judged], packets: Mapping[int, Packet], campaign: Campaign) -> None:
    """Note what the packets still lack: nothing, something for another try, or something that will not come."""
    done, opened = [], []
    for one in taken:
        packet = packets[one.handout.packet_id]
        reasons = {pair: list(judgement.reasons) for pair, judgement in one.outputs.items()}
        left = [pair for pair in packet_orders.lacking(packet, campaign) if pair not in one.accepted]
        if not left:
            done.append(packet.pk)
            if packet.second == Packet.Second.LATER:
                opened.append(packet.pk)
            continue
        packet.lacking = [[*pair, reasons.get(pair, [])] for pair in left]
        packet.tries += 1
        packet.state = Packet.State.ASIDE if packet.tries >= campaign.tries else Packet.State.WAITING
        packet.save(update_fields=["lacking", "tries", "state"])
    Packet.objects.filter(pk__in=done).update(state=Packet.State.DONE, lacking=[])
    Packet.objects.filter(pk__in=opened).update(second=Packet.Second.WANTED)


def note(share: Share, taken: Sequence[Judged], refused: Sequence[Judged], now: datetime) -> None:
    """Count what came in."""
    share.packets += len(taken) + len(refused)
    share.refused += len(refused)
    share.last_at = now
    for one in taken:
        accepted = one.accepted
        bad = [judgement for judgement in one.outputs.values() if not judgement.accepted]
        for judgement in bad:
            for reason in judgement.reasons[:1]:
                share.reasons[reason] = share.reasons.get(reason, 0) + 1
        if one.is_work:
            share.accepted += len(accepted)
            share.tokens += sum(output.tokens for output in one.result.outputs if pair_of(output) in accepted)
        share.rejected += len(bad)
        own_fault = sum(TOO_LONG not in judgement.reasons for judgement in bad)
        reputation.fails(share, len(one.outputs), own_fault)
    for one in refused:
        outputs = len(one.result.outputs) or 1
        reputation.fails(share, outputs, outputs)


def pair_of(output: protocol.RephraseOutput) -> Pair:
    return output.chunk, output.style


# --- comparing -------------------------------------------------------------------------------------------------------


def written_by_others(compared: Sequence[Judged], volunteer: Volunteer) -> dict[int, list[Rephrasing]]:
    """Return by packet what counts of it and is not this volunteer's."""
    found: dict[int, list[Rephrasing]] = {one.handout.packet_id: [] for one in compared}
    if found:
        there = Rephrasing.objects.filter(packet__in=found, state=Rephrasing.State.ACCEPTED)
        for row in there.exclude(volunteer=volunteer):
            found[row.packet_id].append(row)
    return found


def compare(one: Judged, packet: Packet, texts: Sequence[Rephrasing], people: People) -> None:
    """Hold what two volunteers made of the same packet against each other."""
    if packet.state != Packet.State.DONE or not texts:
        return  # what it would be held against was withdrawn meanwhile
    agrees, me = agree(one, texts), people.volunteer.pk
    if one.handout.purpose == Handout.Purpose.KNOWN:
        people.compared(me, agrees, answer_is_known=True)
        if not agrees and people.volunteer.state == Volunteer.State.KNOWN:
            # Perhaps those two were wrong together: what a known volunteer doubts tells of nobody any more.
            for pk in {row.volunteer_id for row in texts}:
                people.compared(pk, agrees=False, answer_is_known=False)
            packet.second = Packet.Second.DISAGREED
            packet.save(update_fields=["second"])
    elif packet.second == Packet.Second.HELD:
        for pk in {me, *(row.volunteer_id for row in texts)}:
            people.compared(pk, agrees, answer_is_known=False)
        packet.second = Packet.Second.AGREED if agrees else Packet.Second.DISAGREED
        packet.save(update_fields=["second"])


def agree(judged: Judged, others: Sequence[Rephrasing]) -> bool:
    """Whether two verdicts on a packet are the same on most of it: accepted, and speaking of the same things."""
    alike = sum(
        (judgement := judged.outputs.get((row.chunk, row.style))) is not None
        and judgement.accepted
        and similarity.measure_meaning(checks.AnalyzedText(row.text), checks.AnalyzedText(judgement.text)) >= ALIKE
        for row in others
    )
    return alike >= AGREEING * len(others)


# --- saying ----------------------------------------------------------------------------------------------------------


def verdict(judged: Judged) -> protocol.PacketVerdict:
    if judged.refusals:
        return protocol.PacketVerdict(packet=judged.handout.packet_id, state="refused", reasons=judged.refusals)
    outputs = tuple(
        protocol.OutputVerdict(chunk=chunk, style=style, accepted=judgement.accepted, reasons=judgement.reasons)  # type: ignore[arg-type]
        for (chunk, style), judgement in judged.outputs.items()
    )
    return protocol.PacketVerdict(packet=judged.handout.packet_id, state="taken", outputs=outputs)


def remembered(handouts: Sequence[Handout]) -> dict[int, protocol.PacketVerdict]:
    """Return what was said of results that came before, under the same lease; nothing of packets that never came."""
    told = {}
    taken = {handout.pk: handout for handout in handouts if handout.state == Handout.State.TAKEN}
    outputs: dict[int, list[protocol.OutputVerdict]] = {pk: [] for pk in taken}
    for row in Rephrasing.objects.filter(handout__in=taken).order_by("pk") if taken else ():
        good = row.state != Rephrasing.State.REJECTED
        word = protocol.OutputVerdict(chunk=row.chunk, style=row.style, accepted=good, reasons=tuple(row.reasons))  # type: ignore[arg-type]
        outputs[row.handout_id].append(word)
    for handout in handouts:
        pk = handout.packet_id
        if handout.pk in taken:
            told[pk] = protocol.PacketVerdict(packet=pk, state="taken", outputs=tuple(outputs[handout.pk]))
        elif handout.state == Handout.State.REFUSED:
            told[pk] = protocol.PacketVerdict(packet=pk, state="refused", reasons=tuple(handout.reasons))
    return told
