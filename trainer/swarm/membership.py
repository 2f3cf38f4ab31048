"""Who belongs to a run, and to which stage: workers say hello, get a seat between two steps, and are let go.

Everything that changes who belongs is a line of the journal, and is told to all members before anything else happens:
who is no member any more is answered by nobody.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass
from statistics import median
from typing import Any

from trainer.protocol import Message
from trainer.swarm import rebalance, wire
from trainer.swarm.config import SwarmConfig
from trainer.swarm.frames import CallFailed, Frame, Refused, Unreachable
from trainer.swarm.journal import Journal, read
from trainer.swarm.transport import Transport, short

FRESH = 10.0
"""Seconds after its last hello in which a worker may get a seat."""
AGAIN = 1.0
"""Seconds until a guest whose joining failed may try again."""
CUT = 0.05
"""Seconds before a peer is asked again whose connection broke."""
SLOW = 120.0
"""Seconds for a newcomer to read its stage's state, for each 100 MB of it, and to begin with."""

log = logging.getLogger(__name__)


@dataclass
class Member:
    peer: wire.Peer
    stage: int
    since: int
    """The step from which it has belonged."""
    label: str = ""
    slots: int = 1
    parameters: int = 0
    throughput: float | None = None
    """Tokens a second, by its own count."""

    @property
    def name(self) -> str:
        return self.peer.name


@dataclass
class Guest:
    """Who has said hello."""

    hello: wire.Hello
    seen: float
    not_before: float = 0.0
    """When it may be asked again to load a stage: it did not work the last time."""


class Membership:
    def __init__(
        self,
        transport: Transport,
        config: SwarmConfig,
        journal: Journal,
        patience: float,
        admits: Callable[[str, wire.Hello], bool] = lambda peer, hello: True,
    ) -> None:
        self.transport, self.config, self.journal, self.patience = transport, config, journal, patience
        self.admits = admits
        self.guests: dict[str, Guest] = {}
        self.members: dict[str, Member] = {}
        self.generation, self.counted = 1, 0
        self.published: tuple[frozenset[tuple[str, int]], int] = (frozenset(), 0)
        self.finished = False
        told = read(journal.path.parent)
        self.banned: set[str] = {line["peer"] for line in told if line["kind"] == "ban"}
        self.doubted: set[str] = {line["peer"] for line in told if line["kind"] == "doubt"}
        """Whose sum was found wrong once."""

    def next_attempt(self) -> int:
        """Return a number above all that were used before, by earlier starts of the coordinator too."""
        self.counted += 1
        return (self.generation << 32) + self.counted

    # --- who is there ---

    async def on_hello(self, caller: str, frame: Frame) -> Frame:
        hello = wire.read(wire.Hello, frame)
        if not self.admits(caller, hello):
            raise Refused("stranger", "this run has not invited you")
        if caller in self.banned:
            raise Refused("banned", "others found that what it computes, or sends, is wrong")
        self.transport.know(caller, hello.addresses)
        guest = self.guests.setdefault(caller, Guest(hello, 0.0))
        guest.hello, guest.seen = hello, now()
        return wire.written(
            wire.Welcome(
                config=self.config,
                member=caller in self.members,
                finished=self.finished,
                every=1.0 if caller in self.members else 0.3,
                patience=self.patience,
            )
        )

    def waiting(self) -> dict[str, Guest]:
        """Return who would like a seat."""
        return {
            name: guest
            for name, guest in sorted(self.guests.items())
            if name not in self.members
            and not guest.hello.leaving
            and now() - guest.seen < FRESH
            and guest.not_before <= now()
        }

    def at_stage(self, stage: int) -> list[Member]:
        """Return a stage's members in the order in which sums are added up."""
        return sorted((m for m in self.members.values() if m.stage == stage), key=lambda member: member.name)

    def empty(self) -> list[int]:
        return [stage for stage in range(self.config.stages) if not self.at_stage(stage)]

    def speeds(self) -> dict[int, dict[str, float]]:
        """Return what everybody's speed is taken to be; who has not been seen working counts as the median."""
        seen = [member.throughput for member in self.members.values() if member.throughput]
        usual = median(seen) if seen else 1.0
        stages = range(self.config.stages)
        return {stage: {m.name: m.throughput or usual for m in self.at_stage(stage)} for stage in stages}

    # --- changes ---

    def join(self, member: Member) -> None:
        self.members[member.name] = member
        about = {"stage": member.stage, "step": member.since, "label": member.label}
        size = {"slots": member.slots, "parameters": member.parameters}
        self.journal.write("join", peer=member.name, addresses=member.peer.addresses, **about, **size)

    def evict(self, name: str, why: str) -> None:
        """Let a member go; nobody answers it once that is published."""
        if name in self.members:
            member = self.members.pop(name)
            log.info("%s leaves stage %d: %s", short(name), member.stage, why)
            self.journal.write("leave", peer=name, stage=member.stage, why=why[:300])

    def ban(self, name: str, why: str) -> None:
        """Let a member go for good: it sent what no sound machine would."""
        if name in self.members:
            self.banned.add(name)
            self.guests.pop(name, None)
            member = self.members[name]
            self.journal.write("ban", peer=name, stage=member.stage, label=member.label, why=why[:300])
            self.evict(name, why)

    def doubt(self, name: str, why: str) -> None:
        """Note that a member's sum was wrong: the second time is one too many."""
        self.doubted.add(name)
        member = self.members[name]
        self.journal.write("doubt", peer=name, stage=member.stage, label=member.label, why=why[:300])

    async def publish(self, joining: Iterable[str] = ()) -> list[str]:
        """Tell all members who belongs, until all who do know; return which of the joining have heard it, too."""
        joining = list(joining)
        while True:
            now_are = frozenset((m.name, m.stage) for m in self.members.values())
            if not joining and self.published[0] == now_are:
                return []
            stages = tuple(tuple(m.peer for m in self.at_stage(stage)) for stage in range(self.config.stages))
            guests = tuple(wire.Peer(name=n, addresses=self.guests[n].hello.addresses) for n in joining)
            told = wire.Members(attempt=self.next_attempt(), stages=stages, joining=guests)
            answers = await self.ask_each(dict.fromkeys((*self.members, *joining), told), "members")
            failed = {name: error for name, error in answers.items() if isinstance(error, CallFailed)}
            for name, error in failed.items():
                self.evict(name, f"not there: {error}")
                if name in self.guests:
                    self.guests[name].not_before = now() + AGAIN
            joining = [name for name in joining if name not in failed]
            if not failed.keys() & {name for name, _ in now_are}:
                self.published = (now_are, told.attempt)
                return joining

    async def ask(self, peer: str, method: str, message: Message, timeout: float | None = None) -> Frame:
        """Return a worker's answer; raise a `CallFailed`. Connections break where peers live on, so it is asked twice:
        what the coordinator asks for may be done again without any harm."""
        try:
            return await self.transport.call(peer, method, wire.written(message), timeout or self.patience)
        except Unreachable as error:
            log.info("%s is asked again: %s", short(peer), error)
            await asyncio.sleep(CUT)
            return await self.transport.call(peer, method, wire.written(message), timeout or self.patience)

    async def ask_each(
        self, messages: Mapping[str, Message], method: str, timeout: float | None = None
    ) -> dict[str, Frame | CallFailed]:
        """Ask several peers at once; return each one's answer, or how it failed."""

        async def one(peer: str, message: Message) -> Frame | CallFailed:
            try:
                return await self.ask(peer, method, message, timeout)
            except CallFailed as error:
                return error

        answers = await asyncio.gather(*(one(peer, message) for peer, message in messages.items()))
        return dict(zip(messages, answers, strict=True))

    # --- seats ---

    def seating(self, wanted: Mapping[str, int | None]) -> dict[str, int]:
        """Return which stage each of these should take: a wish counts while nobody is missing elsewhere."""
        speeds = {stage: dict(peers) for stage, peers in self.speeds().items()}
        seen = [speed for peers in speeds.values() for speed in peers.values()]
        usual, found = (median(seen) if seen else 1.0), {}
        for number, (name, wish) in enumerate(wanted.items()):
            empty, left = {s for s, peers in speeds.items() if not peers}, len(wanted) - number
            free = wish is not None and wish in speeds and len(empty - {wish}) < left
            found[name] = wish if free and wish is not None else rebalance.place(speeds)
            speeds[found[name]][name] = usual
        return found

    async def seat(
        self, wanted: Mapping[str, int | None], step: int, sources: Callable[[int], tuple[wire.Peer, ...]]
    ) -> None:
        """Give these guests seats, at a step's boundary: each reads its stage's state from those who have it.

        At a stage that nobody has yet the first to come is waited for; the others read from it.
        """
        seats = self.seating(wanted)
        while seats:
            first = {stage: name for name, stage in reversed(seats.items())}
            batch = {n: s for n, s in seats.items() if sources(s) or first[s] == n}
            seats = {n: s for n, s in seats.items() if n not in batch}
            batch = {n: batch[n] for n in await self.publish(batch)}
            loads = {
                n: wire.Load(attempt=self.next_attempt(), stage=s, step=step, sources=sources(s))
                for n, s in batch.items()
            }
            for name, answer in (await self.ask_each(loads, "load", SLOW)).items():
                await self.seated(name, batch[name], step, answer)
        await self.publish()

    async def seated(self, name: str, stage: int, step: int, answer: Frame | CallFailed) -> None:
        guest = self.guests[name]
        try:
            loaded = wire.read(wire.Loaded, raised(answer))
        except CallFailed as error:
            guest.not_before = now() + AGAIN
            log.info("%s could not take stage %d: %s", short(name), stage, error)
            return
        await self.before_join(step)
        peer = wire.Peer(name=name, addresses=guest.hello.addresses)
        self.join(Member(peer, stage, step, guest.hello.label, loaded.slots, loaded.parameters))

    before_join: Callable[[int], Awaitable[None]]
    """The coordinator's point for faults."""


def raised(answer: Frame | CallFailed) -> Frame:
    """Return an answer; raise what came in its place."""
    if isinstance(answer, CallFailed):
        raise answer
    return answer


def now() -> float:
    return asyncio.get_running_loop().time()


def as_peer(line: Mapping[str, Any]) -> wire.Peer:
    """Return the peer of a journal's line."""
    return wire.Peer(name=line["peer"], addresses=tuple(line["addresses"]))
