"""Property tests: after any sequence of events each chunk is written once in every style, missing, or set aside."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from django.db import transaction
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from scheduler import leases
from scheduler.campaigns import assignment, messages, reputation, shards, submission, transitions, withdrawal
from scheduler.campaigns import sessions as queue
from scheduler.campaigns.models import Assignment, Campaign, Packet, Rephrasing, Shard, Volunteer
from scheduler.errors import LeaseEndedError
from scheduler.models import Lease, Node
from tests.support.pool import create_node
from tests.support.recording_handler import CALLS
from tests.support.volunteers import (
    build_document,
    build_output,
    copy_source,
    fill_campaign,
    make_campaign,
    paraphrase_text,
)
from trainer import protocol

pytestmark = [pytest.mark.slow, pytest.mark.services]

VOLUNTEERS = 3
volunteer_numbers = st.integers(0, VOLUNTEERS - 1)
steps = st.lists(
    st.one_of(
        st.tuples(st.just("take"), st.tuples(volunteer_numbers, st.integers(1, 4))),
        st.tuples(st.sampled_from(["write", "write", "echo", "half", "repeat", "wrong model"]), volunteer_numbers),
        st.tuples(st.sampled_from(["submit other", "lose", "finish", "ban", "unban"]), volunteer_numbers),
        st.tuples(st.sampled_from(["withdraw", "write shards", "finish campaign", "pause", "start"]), st.none()),
    ),
    max_size=25,
)


class CampaignWorld:
    """A campaign of two documents and three volunteers, with what each holds and submitted last."""

    def __init__(self, campaign: Campaign) -> None:
        CALLS.clear()
        self.campaign = campaign
        self.nodes = [create_node(f"v-{number}", packets=Node.Packets.ONLY)[0] for number in range(VOLUNTEERS)]
        self.volunteers = [reputation.get_volunteer(node) for node in self.nodes]
        self.leases: dict[int, Lease] = {}
        self.held: dict[int, dict[int, protocol.Packet]] = {number: {} for number in range(VOLUNTEERS)}
        self.last: dict[int, protocol.RephrasedPacket] = {}

    def get_lease(self, number: int) -> Lease | None:
        lease = self.leases.get(number)
        if lease is not None and Lease.objects.active(lease).exists():
            return Lease.objects.select_related("node", "job").get(pk=lease.pk)
        self.held[number] = {}
        queue.queue_sessions()
        granted = leases.claim_job(self.nodes[number])
        if granted is None:
            return None
        self.leases[number] = Lease.objects.select_related("node", "job").get(pk=granted.lease)
        return self.leases[number]

    def run_step(self, step: str, number: Any) -> None:
        if step == "take":
            self.take(*number)
        elif step in ("write", "echo", "half", "wrong model"):
            self.rephrase(step, number)
        elif step == "repeat" and number in self.last and number in self.leases:
            self.submit(number, self.last[number])
        elif step == "submit other" and self.last and number in self.leases:
            self.submit(number, next(iter(self.last.values())))
        elif step == "lose" and number in self.leases:
            leases.lose_lease(Lease.objects.get(pk=self.leases[number].pk), "The node is silent.")
        elif step == "finish" and (lease := self.leases.get(number)) and Lease.objects.active(lease).exists():
            leases.finish_lease(Lease.objects.get(pk=lease.pk), protocol.FinishLease(outcome="done"))
        elif step == "ban":
            reputation.ban_volunteer(Volunteer.objects.get(pk=self.volunteers[number].pk), "ada", "for a test")
        elif step == "unban":
            withdrawal.withdraw_banned()
            reputation.unban_volunteer(Volunteer.objects.get(pk=self.volunteers[number].pk), "ada")
        elif number is None:
            self.run_site_step(step)

    def run_site_step(self, step: str) -> None:
        campaign = Campaign.objects.get(pk=self.campaign.pk)
        if step == "withdraw":
            withdrawal.withdraw_banned()
        elif step == "write shards":
            shards.update_shards()
        elif step == "finish campaign":
            transitions.finish_complete_campaigns()
        elif step == "pause":
            transitions.pause_campaign(campaign, "ada")
        elif step == "start":
            transitions.start_campaign(campaign, "ada")

    def take(self, number: int, count: int) -> None:
        lease = self.get_lease(number)
        if lease is None:
            return
        held = tuple(self.held[number])
        for packet in assignment.take_packets(lease, protocol.TakePackets(count=count, held=held)).packets:
            assert packet.packet not in held
            self.held[number][packet.packet] = packet

    def rephrase(self, manner: str, number: int) -> None:
        if not self.held[number] or number not in self.leases:
            return
        _, packet = self.held[number].popitem()
        order = messages.build_order(self.campaign)
        outputs = []
        for chunk in packet.chunks:
            for place, style in enumerate(chunk.styles):
                bad = manner == "echo" or (manner == "half" and place == 0)
                text = copy_source(chunk.text, style) if bad else paraphrase_text(chunk.text, style, f" {number}")
                outputs.append(build_output(chunk, style, text))
        self.last[number] = protocol.RephrasedPacket(
            packet=packet.packet,
            prompt_version=order.prompt_version,
            model="another" if manner == "wrong model" else order.model,
            revision=order.revision,
            sampling=order.sampling,
            outputs=tuple(outputs),
        )
        self.submit(number, self.last[number])

    def submit(self, number: int, result: protocol.RephrasedPacket) -> None:
        lease = Lease.objects.select_related("node", "job").get(pk=self.leases[number].pk)
        try:
            submission.submit_packets(lease, protocol.SubmitPackets(results=(result,)))
        except LeaseEndedError:
            assert lease.state != Lease.State.ACTIVE

    # --- invariants --------------------------------------------------------------------------------------------------

    def check(self) -> None:
        held = Assignment.objects.filter(state="active", purpose="work")
        writing = Counter(held.values_list("packet_id", flat=True))
        for packet in self.campaign.packets.all():
            self.check_packet(packet, writing[packet.pk])
        for shard in Shard.objects.exclude(written_version=0):
            if shard.written_version == shard.version:
                assert shard.rephrasings.filter(state="accepted").count() == shard.rows
        assert not Rephrasing.objects.exclude(state="accepted").exclude(shard=None).exists()
        ended = Assignment.objects.filter(state="active").exclude(lease__state="active")
        assert not ended.exists(), "an ended lease holds no packets"
        replicas = Assignment.objects.filter(state="active", purpose="replica").values_list("packet_id", flat=True)
        for packet in self.campaign.packets.filter(replication="assigned"):
            assert packet.pk in replicas

    def check_packet(self, packet: Packet, writers: int) -> None:
        written = set(packet.rephrasings.filter(state="accepted").values_list("chunk", "style"))
        missing = set(packet.list_missing_outputs(self.campaign.styles))
        assert written | missing == set(packet.list_outputs(self.campaign.styles)), "nothing is lost"
        assert not written & missing, "no written output is requested again"
        assert writers == (packet.state == "assigned")
        assert (packet.state == "done") == (not missing)


@settings(max_examples=25, deadline=None, suppress_health_check=list(HealthCheck))
@given(history=steps, rate=st.sampled_from([0.0, 0.5]))
def test_packet_invariants_hold_after_every_step(
    db: None, settings: Any, tmp_path: Path, history: list[tuple[str, Any]], rate: float
) -> None:
    with transaction.atomic():
        texts = [build_document(number, 6) for number in range(2)]
        fields = {"replication_rate": rate, "rows_per_shard": 3, "chunks_per_packet": 1}
        world = CampaignWorld(fill_campaign(make_campaign(settings, tmp_path, texts, **fields)))
        for step, number in history:
            world.run_step(step, number)
            world.check()
        transaction.set_rollback(True)
