"""Whatever volunteers do, in any order: every chunk is written once in every style, or on its way, or set aside."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from django.db import transaction
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from scheduler import leases
from scheduler.campaigns import (
    assignment,
    messages,
    release,
    reputation,
    shards,
    submission,
    transitions,
    withdrawal,
)
from scheduler.campaigns import sessions as queue
from scheduler.campaigns.models import Assignment, Campaign, Packet, Rephrasing, Shard, Volunteer
from scheduler.errors import LeaseEndedError
from scheduler.models import Lease, Node
from tests.support.pool import make_node
from tests.support.recording_handler import CALLS
from tests.support.volunteers import document, echo, make_campaign, output, paraphrase, produced
from trainer import protocol

VOLUNTEERS = 3
who = st.integers(0, VOLUNTEERS - 1)
steps = st.lists(
    st.one_of(
        st.tuples(st.just("take"), st.tuples(who, st.integers(1, 4))),
        st.tuples(st.sampled_from(["write", "write", "echo", "half", "repeat", "wrong model"]), who),
        st.tuples(st.sampled_from(["steal", "silence", "finish", "bar", "pardon"]), who),
        st.tuples(st.sampled_from(["withdraw", "collate", "close", "pause", "start"]), st.none()),
    ),
    max_size=25,
)


class World:
    """Two documents, three volunteers; each remembers what it holds, and what it handed in last."""

    def __init__(self, campaign: Campaign) -> None:
        CALLS.clear()
        self.campaign = campaign
        self.nodes = [make_node(f"v-{number}", packets=Node.Packets.ONLY)[0] for number in range(VOLUNTEERS)]
        self.people = [reputation.get_volunteer(node) for node in self.nodes]
        self.leases: dict[int, Lease] = {}
        self.held: dict[int, dict[int, protocol.Packet]] = {number: {} for number in range(VOLUNTEERS)}
        self.last: dict[int, protocol.RephrasedPacket] = {}

    def lease(self, number: int) -> Lease | None:
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

    def act(self, what: str, which: Any) -> None:
        if what == "take":
            self.take(*which)
        elif what in ("write", "echo", "half", "wrong model"):
            self.hand_in(what, which)
        elif what == "repeat" and which in self.last and which in self.leases:
            self.submit(which, self.last[which])
        elif what == "steal" and self.last and which in self.leases:
            self.submit(which, next(iter(self.last.values())))
        elif what == "silence" and which in self.leases:
            leases.lose_lease(Lease.objects.get(pk=self.leases[which].pk), "It fell silent.")
        elif what == "finish" and (lease := self.leases.get(which)) and Lease.objects.active(lease).exists():
            leases.finish_lease(Lease.objects.get(pk=lease.pk), protocol.FinishLease(outcome="done"))
        elif what == "bar":
            reputation.ban_volunteer(Volunteer.objects.get(pk=self.people[which].pk), "ada", "for a test")
        elif what == "pardon":
            withdrawal.withdraw_banned()
            reputation.unban_volunteer(Volunteer.objects.get(pk=self.people[which].pk), "ada")
        elif which is None:
            self.site(what)

    def site(self, what: str) -> None:
        campaign = Campaign.objects.get(pk=self.campaign.pk)
        if what == "withdraw":
            withdrawal.withdraw_banned()
        elif what == "collate":
            shards.update_shards()
        elif what == "close":
            transitions.finish_complete_campaigns()
        elif what == "pause":
            transitions.pause_campaign(campaign, "ada")
        elif what == "start":
            transitions.start_campaign(campaign, "ada")

    def take(self, number: int, count: int) -> None:
        lease = self.lease(number)
        if lease is None:
            return
        held = tuple(self.held[number])
        for packet in assignment.take_packets(lease, protocol.TakePackets(count=count, held=held)).packets:
            assert packet.packet not in held
            self.held[number][packet.packet] = packet

    def hand_in(self, how: str, number: int) -> None:
        if not self.held[number] or number not in self.leases:
            return
        _, packet = self.held[number].popitem()
        order = messages.build_order(self.campaign)
        outputs = []
        for chunk in packet.chunks:
            for place, style in enumerate(chunk.styles):
                bad = how == "echo" or (how == "half" and place == 0)
                text = echo(chunk.text, style) if bad else paraphrase(chunk.text, style, f" {number}")
                outputs.append(output(chunk, style, text))
        self.last[number] = protocol.RephrasedPacket(
            packet=packet.packet,
            prompt_version=order.prompt_version,
            model="another" if how == "wrong model" else order.model,
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

    # --- what has to be so -----------------------------------------------------------------------------------------

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
        assert not ended.exists(), "what a lease held goes back with it"
        seconds = Assignment.objects.filter(state="active", purpose="replica").values_list("packet_id", flat=True)
        for packet in self.campaign.packets.filter(replication="assigned"):
            assert packet.pk in seconds

    def check_packet(self, packet: Packet, writers: int) -> None:
        there = set(packet.rephrasings.filter(state="accepted").values_list("chunk", "style"))
        lacking = set(messages.get_missing_keys(packet, self.campaign))
        assert there | lacking == set(messages.get_output_keys(packet, self.campaign)), "nothing is lost"
        assert not there & lacking, "nothing is asked for twice"
        assert writers == (packet.state == "assigned")
        assert (packet.state == "done") == (not lacking)


@settings(max_examples=25, deadline=None, suppress_health_check=list(HealthCheck))
@given(steps=steps, seconds=st.sampled_from([0.0, 0.5]))
def test_the_books_are_straight_after_every_step(world_of: Any, steps: list[tuple[str, Any]], seconds: float) -> None:
    with transaction.atomic():
        world = world_of(seconds)
        for what, which in steps:
            world.act(what, which)
            world.check()
        transaction.set_rollback(True)


@pytest.fixture
def world_of(db: None, settings: Any, tmp_path: Path) -> Any:
    def make(seconds: float) -> World:
        texts = [document(number, 6) for number in range(2)]
        campaign = make_campaign(
            settings, tmp_path, texts, replication_rate=seconds, rows_per_shard=3, chunks_per_packet=1
        )
        return World(produced(campaign))

    return make


def test_a_history_to_its_end(world_of: Any) -> None:
    """One that is barred, two that write all there is: every text once, in shards."""
    world = world_of(0.5)
    world.act("take", (0, 3))
    world.act("write", 0)
    world.act("write", 0)
    world.act("bar", 0)
    world.site("withdraw")
    world.check()
    for number in (1, 2, 1, 2):
        world.act("take", (number, 64))
        while world.held[number]:
            world.act("write", number)
        world.check()
    world.site("collate")
    world.site("close")
    world.check()
    campaign = Campaign.objects.get(pk=world.campaign.pk)
    assert (campaign.state, campaign.reason) == ("done", "Every chunk is written or set aside.")
    rows = Rephrasing.objects.filter(state="accepted")
    assert rows.count() == 2 * campaign.chunk_count == sum(campaign.shards.values_list("rows", flat=True))
    assert not rows.filter(volunteer=world.people[0]).exists()
    assert release.release_ended_leases() == 0
