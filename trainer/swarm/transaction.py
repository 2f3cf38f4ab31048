"""One step of a swarm, as a transaction: all of it, exactly once, or nothing that anybody would notice.

All micro-batches run. Ledgers are compared: what is held twice is forgotten, what is missing runs again, until each
(stage, micro-batch) is held once. All members promise to hold still, add up their stage's sums and vote on the result.
The step is written to the journal. All make the update; who does not is no member any more.
"""

from __future__ import annotations

import asyncio
import logging
import math
import time
from collections import Counter
from collections.abc import Iterable, Mapping

from trainer.swarm import buffers, cover, trust, wire
from trainer.swarm.audit import Audit
from trainer.swarm.calls import Below
from trainer.swarm.chaos import Chaos
from trainer.swarm.config import SwarmConfig
from trainer.swarm.data import Batches
from trainer.swarm.frames import CallFailed, Frame, Malformed, Refused
from trainer.swarm.membership import Membership, raised
from trainer.swarm.transport import short

BLAMES = 2
"""Attempts in which a peer's sum could not be read by another, after which it goes."""
SLOWEST = 5e5
"""Bytes a second that a peer's network should have: a step's end waits so long for its sums."""

Ledgers = Mapping[int, Mapping[str, wire.Ledger]]
"""For each stage, what its members hold."""

log = logging.getLogger(__name__)


class StageLost(Exception):
    """A stage has nobody left who knows its weights."""


class Diverged(ValueError):
    """The gradient is not finite any more; there is nothing to go on with. Lower the learning rate."""


class Transaction:
    def __init__(
        self, step: int, config: SwarmConfig, batches: Batches, membership: Membership, top: Below, chaos: Chaos
    ) -> None:
        self.version, self.config, self.batches, self.membership = step, config, batches, membership
        self.top, self.chaos, self.journal, self.patience = top, chaos, membership.journal, membership.patience
        self.blames: Counter[str] = Counter()

    async def make(self, resumed: bool = False) -> None:
        """Make the step; raise StageLost if that cannot be, with nothing of it done.

        `resumed`: somebody has begun it, and ledgers will tell how far it got.
        """
        started = time.monotonic()
        if not resumed:
            await self.run_all(dict.fromkeys(range(self.config.micro_batches), tuple(range(self.config.stages))))
        votes: dict[str, wire.Vote] | None = None
        while votes is None:
            ledgers = await self.covered()
            await self.chaos.at("covered", self.version)
            attempt = self.membership.next_attempt()
            votes = await self.prepared(attempt, ledgers)
            if votes is not None and await Audit(self, attempt, ledgers, votes).found():
                votes = None
        await self.chaos.at("voted", self.version)
        norm = sum(votes[self.membership.at_stage(stage)[0].name].squared_norm for stage in range(self.config.stages))
        if not math.isfinite(norm):
            raise Diverged(f"step {self.version}: the gradient is not finite any more; try a lower learning rate")
        self.journal.write(
            "commit",
            step=self.version,
            attempt=attempt,
            factor=self.config.rate(self.version),
            clip_scale=self.config.clip_scale(norm),
            norm=math.sqrt(norm),
            loss=loss_of(ledgers[self.config.stages - 1].values()),
            cover=held_by(ledgers),
            votes={str(stage): self.digests(stage, votes) for stage in range(self.config.stages)},
            seconds=round(time.monotonic() - started, 4),
        )
        await self.chaos.at("journaled", self.version)
        await self.commit(attempt, norm)

    def digests(self, stage: int, votes: Mapping[str, wire.Vote]) -> dict[str, str]:
        return {member.name: votes[member.name].digest for member in self.membership.at_stage(stage)}

    async def run_all(self, needs: Mapping[int, tuple[int, ...]]) -> int:
        """Send micro-batches on their way, as many at once as there is room for; return how many came back."""
        stages = [self.membership.at_stage(stage) for stage in range(self.config.stages)]
        rooms = {number: [member.slots for member in peers] for number, peers in enumerate(stages)}
        gate = asyncio.Semaphore(buffers.in_flight(rooms, wanted=2 * max(map(len, stages)) + self.config.stages))

        async def one(number: int, need: tuple[int, ...]) -> bool:
            async with gate:
                x, y = self.batches.tokens(self.version, number)
                ask = wire.Run(step=self.version, micro_batch=number, need=need, patience=self.patience)
                try:
                    await self.top.run(
                        wire.written(ask, x, y), self.config.stages, self.patience, x.numel(), no_tensors
                    )
                except Refused as error:
                    log.info("micro-batch %d did not come back: %s", number, error)
                    return False
                await self.chaos.at("runs", self.version)
                return True

        return sum(await asyncio.gather(*(one(number, need) for number, need in needs.items())))

    async def covered(self) -> dict[int, dict[str, wire.Ledger]]:
        """Have every (stage, micro-batch) held exactly once; return the ledgers that say so."""
        while True:
            ledgers = await self.ledgers()
            held = {s: {n: numbers(ledger) for n, ledger in peers.items()} for s, peers in ledgers.items()}
            forget = cover.to_forget(held)
            ask = wire.Drop(attempt=self.membership.next_attempt(), step=self.version)
            answers = await self.membership.ask_each(dict.fromkeys(forget, ask), "drop")
            self.evict_failed(answers)
            held = {s: {n: set() if n in forget else got for n, got in peers.items()} for s, peers in held.items()}
            needs = cover.missing(held, self.config.micro_batches)
            if not needs and not forget:
                return ledgers
            await self.told()
            log.info("step %d: %d to run again, forgotten by %s", self.version, len(needs), list(map(short, forget)))
            if not await self.run_all(needs):
                await asyncio.sleep(0.05)

    async def ledgers(self) -> dict[int, dict[str, wire.Ledger]]:
        """Ask everybody what they hold; who does not say so in time is let go."""
        ask = wire.Ask(attempt=self.membership.next_attempt(), step=self.version)
        answers = await self.membership.ask_each(dict.fromkeys(self.membership.members, ask), "ledger")
        found: dict[int, dict[str, wire.Ledger]] = {stage: {} for stage in range(self.config.stages)}
        for name, answer in answers.items():
            member = self.membership.members[name]
            try:
                ledger = wire.read(wire.Ledger, raised(answer))
            except CallFailed as error:
                self.membership.evict(name, f"no ledger: {error}")
                continue
            found[member.stage][name], member.throughput = ledger, ledger.throughput
        for name, why in trust.condemned(found, self.top.blamed).items():
            self.membership.ban(name, why)
        await self.told()
        return {s: {n: one for n, one in peers.items() if n in self.membership.members} for s, peers in found.items()}

    async def told(self) -> None:
        """Tell the members who belongs, if that has changed; raise StageLost if a stage has nobody left."""
        await self.membership.publish()
        self.top.now_are(member.name for member in self.membership.at_stage(0))
        if self.membership.empty():
            raise StageLost

    def evict_failed(self, answers: Mapping[str, Frame | CallFailed]) -> None:
        for name, answer in answers.items():
            if isinstance(answer, CallFailed):
                self.membership.evict(name, str(answer))

    async def prepared(
        self, attempt: int, ledgers: Mapping[int, Mapping[str, wire.Ledger]]
    ) -> dict[str, wire.Vote] | None:
        """Have everybody promise and vote; None if that failed, or not all of a stage voted alike."""
        orders, wait = {}, self.patience + self.reading_seconds()
        for peers in ledgers.values():
            for name, ledger in peers.items():
                held, names = sorted(numbers(ledger)), tuple(sorted(peers))
                orders[name] = wire.Prepare(
                    attempt=attempt, step=self.version, held=tuple(held), peers=names, patience=wait
                )
        answers = await self.membership.ask_each(orders, "prepare", wait + self.patience / 2)
        votes = {}
        for name, answer in answers.items():
            try:
                votes[name] = wire.read(wire.Vote, raised(answer))
            except CallFailed as error:
                self.blame(name, error)
        if len(votes) < len(answers):
            return None
        odd = [name for stage in ledgers for name in self.outvoted(stage, votes)]
        for name in odd:
            self.membership.evict(name, "computed something else than the others of its stage")
        return None if odd else votes

    def reading_seconds(self) -> float:
        """Return how long reading all sums of a stage may take, beyond the usual patience."""
        members = [self.membership.at_stage(stage) for stage in range(self.config.stages)]
        return max(4 * len(peers) * max(member.parameters for member in peers) for peers in members) / SLOWEST

    def blame(self, name: str, error: CallFailed) -> None:
        """Take in why somebody did not vote: itself, or whose sum it could not read."""
        unread = isinstance(error, Refused) and error.code == "unread"
        culprit = error.message.partition(":")[0] if unread else name
        if (
            isinstance(error, Refused) and error.code in ("stale", "mismatch")
        ) or culprit not in self.membership.members:
            return
        self.blames[culprit] += 1 if isinstance(error, Refused) else BLAMES
        if self.blames[culprit] >= BLAMES:
            self.membership.evict(culprit, f"no vote: {error}")

    def outvoted(self, stage: int, votes: Mapping[str, wire.Vote]) -> list[str]:
        """Return who of a stage voted otherwise than most; of two halves the one with the oldest member is right."""
        peers = [m for m in self.membership.at_stage(stage) if m.name in votes]
        counts = Counter(votes[m.name].digest for m in peers)
        oldest = min(peers, key=lambda member: (member.since, member.name))
        right = max(counts, key=lambda digest: (counts[digest], digest == votes[oldest.name].digest))
        return [member.name for member in peers if votes[member.name].digest != right]

    async def commit(self, attempt: int, norm: float) -> None:
        """Have everybody make the update. Who does not say that it did goes; the others have the whole sum."""
        order = wire.Commit(
            attempt=attempt,
            step=self.version,
            factor=self.config.rate(self.version),
            clip_scale=self.config.clip_scale(norm),
        )
        waiting = [asyncio.ensure_future(self.committed(name, order)) for name in list(self.membership.members)]
        for done in asyncio.as_completed(waiting):
            await done
            await self.chaos.at("committed", self.version)

    async def committed(self, name: str, order: wire.Commit) -> None:
        try:
            wire.read(wire.Committed, await self.membership.ask(name, "commit", order))
        except CallFailed as error:
            self.membership.evict(name, f"no update: {error}")


def no_tensors(_: str, answer: Frame) -> str:
    """Raise Malformed where the first stage answers with one: nobody needs the gradient of tokens."""
    if answer.tensors:
        raise Malformed("a tensor that nobody asked for")
    return ""


def numbers(ledger: wire.Ledger) -> set[int]:
    return {held.micro_batch for held in ledger.held}


def held_by(ledgers: Mapping[int, Mapping[str, wire.Ledger]]) -> dict[str, dict[str, list[int]]]:
    return {str(s): {n: sorted(numbers(ledger)) for n, ledger in peers.items()} for s, peers in ledgers.items()}


def loss_of(ledgers: Iterable[wire.Ledger]) -> float:
    """Return a step's loss by the last stage's ledgers: nats a target, summed in the order of the micro-batches."""
    held = sorted((held for ledger in ledgers for held in ledger.held), key=lambda held: held.micro_batch)
    return sum(one.nats for one in held) / max(1, sum(one.targets for one in held))
