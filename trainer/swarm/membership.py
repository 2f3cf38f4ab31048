"""Membership: workers say hello, join a stage between two steps, and leave.

Every change is a line of the journal and is published to all members before anything else happens. Members refuse calls
of peers that are not members.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from statistics import median

from trainer.protocol import Message
from trainer.swarm import messages, rebalance
from trainer.swarm.config import SwarmConfig
from trainer.swarm.fault_injection import FaultInjector
from trainer.swarm.frames import CallError, CallRefusedError, PeerUnreachableError, RpcFrame
from trainer.swarm.journal import Journal, JournalLine, read_journal
from trainer.swarm.transport import Transport, get_loop_time, shorten

HELLO_SECONDS = 10.0  # A worker may join a stage for this long after its last hello
REJOIN_SECONDS = 1.0  # Pause before a worker whose join failed may try again
RECONNECT_SECONDS = 0.05  # Pause before a call is repeated after a broken connection
LOAD_SECONDS = 120.0  # Time limit for a joining worker to read and load its stage's state
MIN_BANDWIDTH = 5e5
"""Bytes per second that a peer's network should have. It determines how long the reduction may take."""

Admit = Callable[[str, messages.Hello], bool]  # (peer, hello) -> whether the peer may join this run

log = logging.getLogger(__name__)


@dataclass
class SwarmMember:
    peer: messages.Peer
    stage: int
    since: int  # Step at which it joined
    label: str = ""
    slots: int = 1
    parameters: int = 0
    throughput: float | None = None  # Tokens per second, as it reports

    @property
    def name(self) -> str:
        return self.peer.name


@dataclass
class Guest:
    """A worker that has sent a hello and may join."""

    hello: messages.Hello
    seen: float
    not_before: float = 0.0  # Earliest time of the next join attempt, after a failed one


class Membership:
    def __init__(
        self,
        transport: Transport,
        config: SwarmConfig,
        journal: Journal,
        timeout: float,
        admit: Admit = lambda peer, hello: True,
        faults: FaultInjector | None = None,
    ) -> None:
        self.transport, self.config, self.journal, self.timeout = transport, config, journal, timeout
        self.admit, self.faults = admit, faults or FaultInjector()
        self.guests: dict[str, Guest] = {}
        self.members: dict[str, SwarmMember] = {}
        self.generation, self.attempts = 1, 0
        self.published: frozenset[tuple[str, int]] = frozenset()
        self.finished = False
        lines = read_journal(journal.path.parent)
        self.banned: set[str] = {line["peer"] for line in lines if line["kind"] == "ban"}
        self.first_strikes: set[str] = {line["peer"] for line in lines if line["kind"] == "first_strike"}
        """Peers whose gradient sum was wrong once."""

    def next_attempt(self) -> int:
        """Return a number greater than all earlier ones, including those of earlier starts of the coordinator."""
        self.attempts += 1
        return (self.generation << 32) + self.attempts

    # --- queries ---

    async def on_hello(self, caller: str, frame: RpcFrame) -> RpcFrame:
        hello = messages.parse_message(messages.Hello, frame)
        if not self.admit(caller, hello):
            raise CallRefusedError("not_member", "its credential is invalid or in use by another machine")
        if caller in self.banned:
            raise CallRefusedError("banned", "other peers found its results or messages to be wrong")
        self.transport.add_addresses(caller, hello.addresses)
        guest = self.guests.setdefault(caller, Guest(hello, 0.0))
        guest.hello, guest.seen = hello, get_loop_time()
        is_member = caller in self.members
        every = 1.0 if is_member else 0.3
        welcome = messages.Welcome(config=self.config, member=is_member, finished=self.finished, every=every)
        return messages.to_frame(welcome)

    def list_waiting(self) -> dict[str, Guest]:
        """Return the guests that can join a stage now."""
        return {
            name: guest
            for name, guest in sorted(self.guests.items())
            if name not in self.members
            and not guest.hello.leaving
            and get_loop_time() - guest.seen < HELLO_SECONDS
            and guest.not_before <= get_loop_time()
        }

    def get_stage_members(self, stage: int) -> list[SwarmMember]:
        """Return a stage's members in the order of the reduction."""
        return sorted((m for m in self.members.values() if m.stage == stage), key=lambda member: member.name)

    def list_stages(self) -> list[list[SwarmMember]]:
        return [self.get_stage_members(stage) for stage in range(self.config.stages)]

    def list_empty_stages(self) -> list[int]:
        return [stage for stage, members in enumerate(self.list_stages()) if not members]

    def get_reduce_seconds(self) -> float:
        """Return how long reading all gradient sums of a stage may take, beyond the usual timeout."""
        sums = (4 * len(peers) * max(member.parameters for member in peers) for peers in self.list_stages())
        return max(sums) / MIN_BANDWIDTH

    def estimate_speeds(self) -> dict[int, dict[str, float]]:
        """Return the members' throughputs by stage; the median stands in for members without a measurement."""
        default = median([m.throughput for m in self.members.values() if m.throughput] or [1.0])
        return {
            stage: {m.name: m.throughput or default for m in members}
            for stage, members in enumerate(self.list_stages())
        }

    # --- changes ---

    def add_member(self, member: SwarmMember) -> None:
        self.members[member.name] = member
        fields = {"stage": member.stage, "step": member.since, "label": member.label}
        size = {"slots": member.slots, "parameters": member.parameters}
        self.journal.write("join", peer=member.name, addresses=member.peer.addresses, **fields, **size)

    def evict(self, name: str, reason: str) -> None:
        """Remove a member. The others refuse its calls once that is published."""
        if name in self.members:
            member = self.members.pop(name)
            log.info("%s leaves stage %d: %s", shorten(name), member.stage, reason)
            self.journal.write("leave", peer=name, stage=member.stage, why=reason[:300])

    def evict_failed(self, replies: Mapping[str, RpcFrame | CallError]) -> None:
        """Evict the members whose call failed."""
        for name, reply in replies.items():
            if isinstance(reply, CallError):
                self.evict(name, str(reply))

    def ban(self, name: str, reason: str) -> None:
        """Remove a member for good because its messages or results were wrong."""
        if name in self.members:
            self.banned.add(name)
            self.guests.pop(name, None)
            member = self.members[name]
            self.journal.write("ban", peer=name, stage=member.stage, label=member.label, why=reason[:300])
            self.evict(name, reason)

    def record_first_strike(self, name: str, reason: str) -> None:
        """Record that a member's gradient sum was wrong. The second time it is banned."""
        self.first_strikes.add(name)
        member = self.members[name]
        self.journal.write("first_strike", peer=name, stage=member.stage, label=member.label, why=reason[:300])

    async def publish(self, joining: Iterable[str] = ()) -> list[str]:
        """Send the list of members to all of them, until all members have it; return the `joining` that have it too."""
        joining = list(joining)
        while True:
            current = frozenset((m.name, m.stage) for m in self.members.values())
            if not joining and self.published == current:
                return []
            stages = tuple(tuple(member.peer for member in members) for members in self.list_stages())
            guests = tuple(messages.Peer(name=n, addresses=self.guests[n].hello.addresses) for n in joining)
            update = messages.Members(attempt=self.next_attempt(), stages=stages, joining=guests)
            replies = await self.call_members(dict.fromkeys((*self.members, *joining), update), "members")
            failed = {name: error for name, error in replies.items() if isinstance(error, CallError)}
            for name, error in failed.items():
                self.evict(name, f"unreachable: {error}")
                if name in self.guests:
                    self.guests[name].not_before = get_loop_time() + REJOIN_SECONDS
            joining = [name for name in joining if name not in failed]
            if not failed.keys() & {name for name, _ in current}:
                self.published = current
                return joining

    # --- calls ---

    async def call_member(self, peer: str, method: str, message: Message, timeout: float | None = None) -> RpcFrame:
        """Return a worker's reply; raise `CallError`. A call is repeated once after a broken connection: all of the
        coordinator's calls are idempotent."""
        try:
            return await self.transport.call(peer, method, messages.to_frame(message), timeout or self.timeout)
        except PeerUnreachableError as error:
            log.info("%s is called again: %s", shorten(peer), error)
            await asyncio.sleep(RECONNECT_SECONDS)
            return await self.transport.call(peer, method, messages.to_frame(message), timeout or self.timeout)

    async def call_members(
        self, calls: Mapping[str, Message], method: str, timeout: float | None = None
    ) -> dict[str, RpcFrame | CallError]:
        """Call several peers at once; return each one's reply or error."""

        async def call_one(peer: str, message: Message) -> RpcFrame | CallError:
            try:
                return await self.call_member(peer, method, message, timeout)
            except CallError as error:
                return error

        replies = await asyncio.gather(*(call_one(peer, message) for peer, message in calls.items()))
        return dict(zip(calls, replies, strict=True))

    # --- joining ---

    def assign_stages(self, requests: Mapping[str, int | None]) -> dict[str, int]:
        """Return the stage of each joining worker. Requests are granted while no other stage lacks a worker."""
        speeds = {stage: dict(peers) for stage, peers in self.estimate_speeds().items()}
        default = median([speed for peers in speeds.values() for speed in peers.values()] or [1.0])
        assigned: dict[str, int] = {}
        for number, (name, stage) in enumerate(requests.items()):
            empty, left = {s for s, peers in speeds.items() if not peers}, len(requests) - number
            if stage is None or stage not in speeds or len(empty - {stage}) >= left:
                stage = rebalance.choose_stage(speeds)
            assigned[name] = stage
            speeds[stage][name] = default
        return assigned

    async def add_workers(
        self, requests: Mapping[str, int | None], step: int, get_sources: Callable[[int], tuple[messages.Peer, ...]]
    ) -> None:
        """Let guests join, between two steps: each reads its stage's state from a peer that has it.

        If no peer has a stage's state, the first guest creates it and the others read it from there. `get_sources`
        returns the peers that have a stage's state.
        """
        assigned = self.assign_stages(requests)
        while assigned:
            batch = self.choose_batch(assigned, get_sources)
            assigned = {n: s for n, s in assigned.items() if n not in batch}
            batch = {n: batch[n] for n in await self.publish(batch)}
            loads = {
                name: messages.Load(attempt=self.next_attempt(), stage=stage, step=step, sources=get_sources(stage))
                for name, stage in batch.items()
            }
            for name, reply in (await self.call_members(loads, "load", LOAD_SECONDS)).items():
                await self.finish_join(name, batch[name], step, reply)
        await self.publish()

    def choose_batch(
        self, assigned: Mapping[str, int], get_sources: Callable[[int], tuple[messages.Peer, ...]]
    ) -> dict[str, int]:
        """Return those that can load their stage now: all whose stage has sources, and a first guest of any other."""
        first = {stage: name for name, stage in reversed(assigned.items()) if not get_sources(stage)}
        return {n: s for n, s in assigned.items() if get_sources(s) or first.get(s) == n}

    async def finish_join(self, name: str, stage: int, step: int, reply: RpcFrame | CallError) -> None:
        guest = self.guests[name]
        try:
            loaded = messages.parse_message(messages.Loaded, raise_if_failed(reply))
        except CallError as error:
            guest.not_before = get_loop_time() + REJOIN_SECONDS
            log.info("%s could not load stage %d: %s", shorten(name), stage, error)
            return
        await self.faults.trigger("loaded", step)
        peer = messages.Peer(name=name, addresses=guest.hello.addresses)
        self.add_member(SwarmMember(peer, stage, step, guest.hello.label, loaded.slots, loaded.parameters))


def raise_if_failed(reply: RpcFrame | CallError) -> RpcFrame:
    """Return a reply; raise the error in its place."""
    if isinstance(reply, CallError):
        raise reply
    return reply


def member_from_line(line: JournalLine) -> SwarmMember:
    """Return the member that a journal's join line describes."""
    peer = messages.Peer(name=line["peer"], addresses=tuple(line["addresses"]))
    return SwarmMember(peer, line["stage"], line["step"], line["label"], line["slots"], line["parameters"])
