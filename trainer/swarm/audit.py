"""Somebody's share of a step computed again by another peer of its stage, while all hold still, and compared.

Done where a sum looks strange, and now and then by chance (`SwarmConfig.audit`). It is the sum that is compared, which
its owner cannot change any more: being honest only while watched does not help.
"""

from __future__ import annotations

import logging
import random
from collections.abc import Mapping
from typing import TYPE_CHECKING

from trainer.swarm import trust, wire
from trainer.swarm.frames import CallFailed
from trainer.swarm.membership import Member
from trainer.swarm.transport import short

if TYPE_CHECKING:
    from trainer.swarm.transaction import Transaction

log = logging.getLogger(__name__)


class Audit:
    def __init__(
        self,
        step: Transaction,
        attempt: int,
        ledgers: Mapping[int, Mapping[str, wire.Ledger]],
        votes: Mapping[str, wire.Vote],
    ) -> None:
        self.step, self.attempt, self.ledgers, self.votes = step, attempt, ledgers, votes
        self.membership, self.config = step.membership, step.config

    async def found(self) -> bool:
        """Look at all who are suspected, then at others by chance, until one is found guilty; that one is doubted, or
        banned."""
        for name, why in self.to_look_at().items():
            guilty = await self.verdict(name)
            if guilty is not None:
                await self.judged(guilty, why if guilty == name else "blamed another peer wrongly")
                return True
        return False

    async def judged(self, name: str, why: str) -> None:
        """Ban who is wrong. The first time it only has to forget its sum, and to be more careful: somebody further
        down may have sent it a gradient that is wrong. At the last stage there is nobody further down."""
        last = self.membership.members[name].stage == self.config.stages - 1
        if last or name in self.membership.doubted:
            self.membership.ban(name, why)
            return
        self.membership.doubt(name, why)
        ask = wire.Drop(attempt=self.membership.next_attempt(), step=self.step.version, doubted=True)
        self.step.evict_failed(await self.membership.ask_each({name: ask}, "drop"))

    def to_look_at(self) -> dict[str, str]:
        found: dict[str, str] = {}
        for peers in self.ledgers.values():
            read = {name: dict(self.votes[name].norms) for name in peers}
            found |= trust.suspects(read, {name: len(ledger.held) for name, ledger in peers.items()})
        chance = random.SystemRandom()
        drawn = [name for name in self.votes if chance.random() < self.config.audit]
        found = {**found, **{n: "computed again, its sum is another one" for n in drawn if n not in found}}
        return {name: why for name, why in found.items() if name in self.membership.members}

    async def verdict(self, name: str) -> str | None:
        """Return who is wrong about this peer's sum: it, or whoever computed that again; None: nobody, or not known."""
        stage = self.membership.members[name].stage
        others = [m for m in self.membership.at_stage(stage) if m.name != name]
        random.shuffle(others)
        if not others or await self.same(name, others[0].name) is not False:
            return None
        if len(others) == 1:
            return self.less_believed(self.membership.members[name], others[0])
        again = await self.same(name, others[1].name)
        return None if again is None else others[0].name if again else name

    def less_believed(self, one: Member, other: Member) -> str:
        """Of two that contradict each other: who came later, or at the same time has the longer sum."""

        def doubt(member: Member) -> tuple[int, float]:
            norms = [dict(vote.norms).get(member.name, 0.0) for vote in self.votes.values()]
            return member.since, max(n if n == n else float("inf") for n in norms)

        return max(one, other, key=doubt).name

    async def same(self, name: str, by: str) -> bool | None:
        """Whether `by` gets the same sum as this peer; None if it could not be found out."""
        ledger = self.ledgers[self.membership.members[name].stage][name]
        number = self.membership.next_attempt()
        try:
            for held in ledger.held:
                await self.replay(held.micro_batch, wire.Aside(peer=by, number=number))
            if not ledger.held:
                return all(dict(vote.norms).get(name, 0.0) == 0 for vote in self.votes.values())
            ask = wire.Replayed(
                attempt=self.attempt,
                step=self.step.version,
                peer=name,
                number=number,
                patience=self.step.patience,
            )
            wait = self.step.patience + self.step.reading_seconds()
            answer = wire.read(wire.Distance, await self.membership.ask(by, "replayed", ask, wait))
        except CallFailed as error:
            log.info("%s could not be looked at: %s", short(name), error)
            return None
        log.info("%s's sum, computed again by %s: %.1e apart", short(name), short(by), answer.of)
        if not answer.finite:  # the model itself is
            return True
        return answer.of <= trust.close(self.config.precision, self.config.wire)

    async def replay(self, micro_batch: int, aside: wire.Aside) -> None:
        x, y = self.step.batches.tokens(self.step.version, micro_batch)
        ask = wire.Run(step=self.step.version, micro_batch=micro_batch, aside=aside, patience=self.step.patience)
        request, only = wire.written(ask, x, y), aside.peer
        await self.step.top.run(request, self.config.stages, self.step.patience, x.numel(), only=only)
