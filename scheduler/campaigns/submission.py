"""Checks submitted packets with the same checks as the volunteer's side, and records the results.

A result counts once, under the lease that holds its packet. A repeated submission gets the same verdict; a result that
another lease replays gets none. The texts are checked before the transaction, which only writes.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime

from django.db import transaction
from django.utils import timezone

from scheduler import uploads
from scheduler.campaigns import messages, release, reputation
from scheduler.campaigns.models import Assignment, Campaign, Contribution, OutputKey, Packet, Rephrasing, Volunteer
from scheduler.campaigns.sessions import get_campaign
from scheduler.models import Lease
from trainer import protocol
from trainer.rephrase import checks
from trainer.rephrase.checks.text import measure_meaning

MIN_SIMILARITY = 0.2
"""Cosine of character 3-grams of two texts for one chunk and style; also the limit for "easy" texts. A guess."""
MIN_AGREEMENT = 0.6
"""Share of a packet's outputs on which two volunteers must agree."""
DUPLICATE = "duplicate"
PROMPT_TOO_LONG = "prompt_too_long"
"""Reported by the volunteer, who is not to blame."""


@dataclass
class CheckedPacket:
    """A submitted packet with the results of the checks, not yet recorded."""

    assignment: Assignment
    result: protocol.RephrasedPacket
    refusals: tuple[str, ...] = ()
    """Why the packet as a whole is refused."""
    outputs: dict[OutputKey, checks.CheckResult] = field(default_factory=dict)

    @property
    def is_work(self) -> bool:
        """Whether the texts count. Otherwise they are compared only, and may equal another volunteer's."""
        return self.assignment.purpose == Assignment.Purpose.WORK

    @property
    def accepted(self) -> set[OutputKey]:
        return {key for key, output in self.outputs.items() if output.accepted}


def submit_packets(lease: Lease, message: protocol.SubmitPackets) -> protocol.SubmitPacketsReply:
    """Check and record a batch; return a verdict for each packet. Raise LeaseEndedError if the lease has ended."""
    campaign, volunteer = get_campaign(lease), reputation.get_volunteer(lease.node)
    ids = {result.packet for result in message.results}
    rows = Assignment.objects.filter(lease=lease, packet__in=ids).select_related("packet")
    assignments = {row.packet_id: row for row in rows}
    checked: dict[int, CheckedPacket] = {}
    if volunteer.state != Volunteer.State.BANNED:
        checked = check_results(message.results, assignments, campaign)
    recorded = record_packets(lease, campaign, volunteer, checked) if checked else set()
    verdicts = {pk: build_verdict(checked[pk]) for pk in recorded}
    verdicts |= load_verdicts([row for pk, row in assignments.items() if pk not in recorded])
    gone = (protocol.PacketVerdict(packet=result.packet, state="gone") for result in message.results)
    return protocol.SubmitPacketsReply(verdicts=tuple(verdicts.get(verdict.packet, verdict) for verdict in gone))


# --- checks ----------------------------------------------------------------------------------------------------------


def check_results(
    results: Iterable[protocol.RephrasedPacket], assignments: Mapping[int, Assignment], campaign: Campaign
) -> dict[int, CheckedPacket]:
    """Check the results that have an active assignment, each packet once."""
    order, thresholds = messages.build_order(campaign), checks.merge_thresholds(campaign.thresholds)
    checked: dict[int, CheckedPacket] = {}
    for result in results:
        assignment = assignments.get(result.packet)
        if assignment is None or assignment.state != Assignment.State.ACTIVE or result.packet in checked:
            continue
        chunks = messages.build_chunks(assignment.packet, campaign, assignment.purpose)
        packet = CheckedPacket(assignment, result, checks.check_envelope(result, list(chunks), order))
        if not packet.refusals:
            for output in result.outputs:
                source = assignment.packet.get_source_text(output.chunk)
                packet.outputs[get_output_key(output)] = check_output(output, source, campaign.language, thresholds)
        checked[result.packet] = packet
    reject_duplicates([packet for packet in checked.values() if packet.is_work], campaign)
    return checked


def check_output(
    output: protocol.RephraseOutput, source: str, language: str, thresholds: Mapping[str, checks.Thresholds]
) -> checks.CheckResult:
    if output.ended == "none":
        return checks.CheckResult(False, (output.trouble if output.trouble in checks.REASONS else "empty",))
    return checks.check_output(
        source, output.style, output.text, ended=output.ended, language=language, thresholds=thresholds
    )


def reject_duplicates(packets: Sequence[CheckedPacket], campaign: Campaign) -> None:
    """Reject texts that were accepted before or come twice in the batch."""
    outputs = [(packet, key) for packet in packets for key in sorted(packet.accepted)]
    if not outputs:
        return
    keys = {packet.outputs[key].key for packet, key in outputs}
    accepted = Rephrasing.objects.accepted().filter(campaign=campaign, duplicate_key__in=keys)
    seen = set(accepted.values_list("duplicate_key", flat=True))
    for packet, key in outputs:
        output = packet.outputs[key]
        if output.key in seen:
            packet.outputs[key] = replace(output, accepted=False, reasons=(DUPLICATE,))
        seen.add(output.key)


def get_output_key(output: protocol.RephraseOutput) -> OutputKey:
    return output.chunk, output.style


# --- records ---------------------------------------------------------------------------------------------------------


@transaction.atomic
def record_packets(
    lease: Lease, campaign: Campaign, volunteer: Volunteer, checked: Mapping[int, CheckedPacket]
) -> set[int]:
    """Record checked packets; return those that the lease still held."""
    uploads.lock_active_lease(lease)
    packets = Packet.objects.select_for_update(no_key=True).filter(pk__in=checked).order_by("pk").in_bulk()
    active = Assignment.objects.filter(lease=lease, packet__in=checked, state=Assignment.State.ACTIVE)
    held = sorted(active.select_for_update(no_key=True).values_list("packet_id", flat=True))
    if not held:
        return set()
    now = timezone.now()
    refused = [checked[pk] for pk in held if checked[pk].refusals]
    submitted = [checked[pk] for pk in held if not checked[pk].refusals]
    replicas = [packet for packet in submitted if not packet.is_work]
    others = load_texts_of_others(replicas, volunteer)
    participants = Participants(campaign, volunteer, {row.volunteer_id for rows in others.values() for row in rows})
    refuse_packets(refused, now)
    update_packets([packet for packet in submitted if packet.is_work], packets, campaign)
    for packet in replicas:
        pk = packet.assignment.packet_id
        compare_packet(packet, packets[pk], others[pk], participants)
    Rephrasing.objects.bulk_create(
        row for packet in submitted for row in build_rephrasings(packet, campaign, volunteer, now)
    )
    ended = Assignment.objects.filter(pk__in=[packet.assignment.pk for packet in submitted])
    ended.update(state=Assignment.State.SUBMITTED, ended_at=now)
    count_packets(participants.contribution, submitted, refused, now)
    participants.save()
    return set(held)


class Participants:
    """The submitting volunteer and those whose texts are compared, with their rows locked in a fixed order."""

    def __init__(self, campaign: Campaign, volunteer: Volunteer, others: Collection[int]) -> None:
        ids = {volunteer.pk, *others}
        Contribution.objects.get_or_create(campaign=campaign, volunteer=volunteer)
        volunteers = Volunteer.objects.select_for_update(no_key=True).filter(pk__in=ids)
        self.volunteers = volunteers.order_by("pk").in_bulk()
        rows = Contribution.objects.select_for_update(no_key=True).filter(campaign=campaign, volunteer__in=ids)
        self.contributions = {row.volunteer_id: row for row in rows.order_by("pk")}
        self.volunteer, self.contribution = self.volunteers[volunteer.pk], self.contributions[volunteer.pk]

    def record_comparison(self, pk: int, agrees: bool, *, answer_is_known: bool = False) -> None:
        reputation.record_comparison(
            self.volunteers[pk], self.contributions[pk], agrees, answer_is_known=answer_is_known
        )

    def save(self) -> None:
        for pk, contribution in self.contributions.items():
            contribution.save()
            reputation.update_volunteer_state(self.volunteers[pk], contribution)


def refuse_packets(refused: Sequence[CheckedPacket], now: datetime) -> None:
    """Return to the queue the packets written with another model or settings."""
    release.release_assignments([packet.assignment for packet in refused])
    for packet in refused:
        Assignment.objects.filter(pk=packet.assignment.pk).update(
            state=Assignment.State.REFUSED, reasons=list(packet.refusals), ended_at=now
        )


def build_rephrasings(
    packet: CheckedPacket, campaign: Campaign, volunteer: Volunteer, now: datetime
) -> Iterator[Rephrasing]:
    """Yield a row for every output, accepted or not."""
    accepted_state = Rephrasing.State.ACCEPTED if packet.is_work else Rephrasing.State.REPLICA
    for output in packet.result.outputs:
        checked = packet.outputs[get_output_key(output)]
        yield Rephrasing(
            campaign=campaign,
            packet_id=packet.assignment.packet_id,
            assignment=packet.assignment,
            volunteer=volunteer,
            chunk=output.chunk,
            style=output.style,
            state=accepted_state if checked.accepted else Rephrasing.State.REJECTED,
            reasons=list(checked.reasons),
            text=checked.text,
            sha256=output.sha256 if checked.text == output.text else messages.compute_sha256(checked.text),
            source_sha256=output.source_sha256,
            duplicate_key=checked.key,
            tokens=output.tokens,
            back_end=packet.result.back_end,
            created_at=now,
        )


def update_packets(submitted: Sequence[CheckedPacket], packets: Mapping[int, Packet], campaign: Campaign) -> None:
    """Update what the packets still miss: done, waiting for another attempt, or set aside."""
    done = []
    for one in submitted:
        packet, accepted = packets[one.assignment.packet_id], one.accepted
        missing = [key for key in packet.list_missing_outputs(campaign.styles) if key not in accepted]
        if not missing:
            done.append(packet.pk)
            continue
        packet.missing = [[*key, list(one.outputs[key].reasons) if key in one.outputs else []] for key in missing]
        packet.attempts += 1
        is_last = packet.attempts >= campaign.max_attempts
        packet.state = Packet.State.SET_ASIDE if is_last else Packet.State.WAITING
        packet.save(update_fields=["missing", "attempts", "state"])
    finished = Packet.objects.filter(pk__in=done)
    finished.update(state=Packet.State.DONE, missing=[])
    finished.filter(replication=Packet.Replication.PLANNED).update(replication=Packet.Replication.OPEN)


def count_packets(
    contribution: Contribution, submitted: Sequence[CheckedPacket], refused: Sequence[CheckedPacket], now: datetime
) -> None:
    """Update the volunteer's counters."""
    contribution.packets += len(submitted) + len(refused)
    contribution.refused += len(refused)
    contribution.last_at = now
    for packet in submitted:
        accepted = packet.accepted
        rejected = [output for output in packet.outputs.values() if not output.accepted]
        reasons = Counter(reason for output in rejected for reason in output.reasons[:1])
        contribution.rejection_reasons = dict(Counter(contribution.rejection_reasons) + reasons)
        if packet.is_work:
            contribution.accepted += len(accepted)
            contribution.tokens += sum(out.tokens for out in packet.result.outputs if get_output_key(out) in accepted)
        contribution.rejected += len(rejected)
        blamed = sum(PROMPT_TOO_LONG not in output.reasons for output in rejected)
        reputation.update_rejection_rate(contribution, len(packet.outputs), blamed)
    for packet in refused:
        outputs = len(packet.result.outputs) or 1
        reputation.update_rejection_rate(contribution, outputs, outputs)


# --- comparisons -----------------------------------------------------------------------------------------------------


def load_texts_of_others(packets: Sequence[CheckedPacket], volunteer: Volunteer) -> dict[int, list[Rephrasing]]:
    """Return the accepted texts of other volunteers, by packet."""
    texts: dict[int, list[Rephrasing]] = {packet.assignment.packet_id: [] for packet in packets}
    if texts:
        accepted = Rephrasing.objects.accepted().filter(packet__in=texts)
        for row in accepted.exclude(volunteer=volunteer):
            texts[row.packet_id].append(row)
    return texts


def compare_packet(
    checked: CheckedPacket, packet: Packet, texts: Sequence[Rephrasing], participants: Participants
) -> None:
    """Compare a replica or known answer with the accepted texts of the packet."""
    if packet.state != Packet.State.DONE or not texts:
        return  # the texts were withdrawn meanwhile
    agrees, volunteer = is_agreement(checked, texts), participants.volunteer
    authors = {row.volunteer_id for row in texts}
    if checked.assignment.purpose == Assignment.Purpose.KNOWN_ANSWER:
        participants.record_comparison(volunteer.pk, agrees, answer_is_known=True)
        if agrees or volunteer.state != Volunteer.State.TRUSTED:
            return
        # The authors may have agreed on a wrong answer: a packet that a trusted volunteer contradicts is not known.
        for pk in authors:
            participants.record_comparison(pk, agrees=False)
        packet.replication = Packet.Replication.DISAGREED
        packet.save(update_fields=["replication"])
    elif packet.replication == Packet.Replication.ASSIGNED:
        for pk in {volunteer.pk, *authors}:
            participants.record_comparison(pk, agrees)
        packet.replication = Packet.Replication.AGREED if agrees else Packet.Replication.DISAGREED
        packet.save(update_fields=["replication"])


def is_agreement(checked: CheckedPacket, others: Sequence[Rephrasing]) -> bool:
    """Whether most outputs were accepted by both and are similar."""
    similar = sum(
        (output := checked.outputs.get((row.chunk, row.style))) is not None
        and output.accepted
        and measure_meaning(checks.AnalyzedText(row.text), checks.AnalyzedText(output.text)) >= MIN_SIMILARITY
        for row in others
    )
    return similar >= MIN_AGREEMENT * len(others)


# --- verdicts --------------------------------------------------------------------------------------------------------


def build_verdict(checked: CheckedPacket) -> protocol.PacketVerdict:
    pk = checked.assignment.packet_id
    if checked.refusals:
        return protocol.PacketVerdict(packet=pk, state="refused", reasons=checked.refusals)
    outputs = tuple(
        protocol.OutputVerdict(chunk=chunk, style=style, accepted=output.accepted, reasons=output.reasons)  # type: ignore[arg-type]
        for (chunk, style), output in checked.outputs.items()
    )
    return protocol.PacketVerdict(packet=pk, state="taken", outputs=outputs)


def load_verdicts(assignments: Sequence[Assignment]) -> dict[int, protocol.PacketVerdict]:
    """Return the recorded verdicts of earlier submissions under the same lease, by packet."""
    submitted = [row.pk for row in assignments if row.state == Assignment.State.SUBMITTED]
    outputs: dict[int, list[protocol.OutputVerdict]] = {pk: [] for pk in submitted}
    for text in Rephrasing.objects.filter(assignment__in=submitted).order_by("pk") if submitted else ():
        accepted, reasons = text.state != Rephrasing.State.REJECTED, tuple(text.reasons)
        verdict = protocol.OutputVerdict(chunk=text.chunk, style=text.style, accepted=accepted, reasons=reasons)  # type: ignore[arg-type]
        outputs[text.assignment_id].append(verdict)
    verdicts = {}
    for row in assignments:
        pk = row.packet_id
        if row.state == Assignment.State.SUBMITTED:
            verdicts[pk] = protocol.PacketVerdict(packet=pk, state="taken", outputs=tuple(outputs[row.pk]))
        elif row.state == Assignment.State.REFUSED:
            verdicts[pk] = protocol.PacketVerdict(packet=pk, state="refused", reasons=tuple(row.reasons))
    return verdicts
