"""Audits: while a step is frozen, another peer of a stage recomputes one peer's gradient sum, and the two are compared.

Suspicious sums are audited, and others at random (`SwarmConfig.audit`). The compared sum is final when the audit is
announced, so a peer cannot behave well only while it is audited. One whose sum cannot be read twice leaves without a
ban, since its connection may be at fault: no sum counts that could not be audited.
"""

from __future__ import annotations

import logging
import random
from collections.abc import Callable, Mapping

from trainer.swarm import messages, trust
from trainer.swarm.data import Batches
from trainer.swarm.frames import CallError, CallRefusedError
from trainer.swarm.membership import Membership, SwarmMember
from trainer.swarm.stage_client import StageClient
from trainer.swarm.transport import shorten

log = logging.getLogger(__name__)


class Audit:
    """The audit of one attempt of a step's transaction."""

    def __init__(
        self,
        step: int,
        attempt: int,
        ledgers: messages.LedgersByStage,
        votes: Mapping[str, messages.Vote],
        batches: Batches,
        membership: Membership,
        first_stage: StageClient,
        add_blame: Callable[[str, str], None],
    ) -> None:
        """`add_blame`: called with a peer whose sum could not be read, and why."""
        self.step, self.attempt, self.ledgers, self.votes = step, attempt, ledgers, votes
        self.batches, self.membership, self.first_stage = batches, membership, first_stage
        self.config, self.timeout, self.add_blame = batches.config, membership.timeout, add_blame

    async def run(self) -> bool:
        """Audit all suspects, then others at random, until a peer is sanctioned or evicted; return whether one was."""
        for name, reason in self.select_peers().items():
            culprit = await self.find_culprit(name)
            if culprit is not None:
                await self.sanction(culprit, reason if culprit == name else "blamed another peer wrongly")
            if culprit is not None or name not in self.membership.members:
                return True
        return False

    async def sanction(self, name: str, reason: str) -> None:
        """Ban a culprit at its second offense; at the first, have it drop its sum and verify more gradients.

        The first offense may be the fault of a later stage. A peer of the last stage has no such excuse.
        """
        is_last_stage = self.membership.members[name].stage == self.config.stages - 1
        if is_last_stage or name in self.membership.first_strikes:
            self.membership.ban(name, reason)
            return
        self.membership.record_first_strike(name, reason)
        order = messages.DropStep(attempt=self.membership.next_attempt(), step=self.step, first_strike=True)
        self.membership.evict_failed(await self.membership.call_members({name: order}, "drop"))

    def select_peers(self) -> dict[str, str]:
        """Return the peers to audit, suspects first, and the reason for each."""
        suspects: dict[str, str] = {}
        for peers in self.ledgers.values():
            norms = {name: dict(self.votes[name].norms) for name in peers}
            suspects |= trust.find_suspects(norms, {name: len(ledger.held) for name, ledger in peers.items()})
        rng = random.SystemRandom()
        drawn = [name for name in self.votes if rng.random() < self.config.audit]
        reasons = suspects | {name: "its recomputed gradient sum differs" for name in drawn if name not in suspects}
        return {name: reason for name, reason in reasons.items() if name in self.membership.members}

    async def find_culprit(self, name: str) -> str | None:
        """Return who is wrong about a peer's sum: that peer, or the one that recomputed it. None: unknown."""
        stage = self.membership.members[name].stage
        others = [m for m in self.membership.get_stage_members(stage) if m.name != name]
        random.shuffle(others)
        if not others:
            return None
        is_reproduced = await self.is_reproduced(name, others[0].name)
        if is_reproduced is None and name in self.membership.members:  # it could not be read, or the auditor failed
            others.append(others.pop(0))
            is_reproduced = await self.is_reproduced(name, others[0].name)
        if is_reproduced is not False:
            return None
        if len(others) == 1:
            return self.choose_less_trusted(self.membership.members[name], others[0])
        is_reproduced = await self.is_reproduced(name, others[1].name)
        return None if is_reproduced is None else others[0].name if is_reproduced else name

    def choose_less_trusted(self, one: SwarmMember, other: SwarmMember) -> str:
        """Return the later of two members that contradict each other; if they joined together, the one with the
        longer sum."""

        def rank(member: SwarmMember) -> tuple[int, float]:
            norms = [dict(vote.norms).get(member.name, 0.0) for vote in self.votes.values()]
            return member.since, max(norm if norm == norm else float("inf") for norm in norms)

        return max(one, other, key=rank).name

    async def is_reproduced(self, name: str, auditor: str) -> bool | None:
        """Return whether `auditor` computes the same sum as this peer; None if the audit failed."""
        ledger = self.ledgers[self.membership.members[name].stage][name]
        number = self.membership.next_attempt()
        try:
            for held in ledger.held:
                await self.replay_micro_batch(held.micro_batch, messages.ReplayTarget(peer=auditor, number=number))
            # Without micro-batches, the auditor compares the published sum with zeros, and a third peer decides as for
            # any other sum. The votes prove nothing here: each part of a sum may have been read by a single peer.
            order = messages.CompareReplay(
                attempt=self.attempt,
                step=self.step,
                peer=name,
                number=number if ledger.held else None,
                timeout=self.timeout,
            )
            seconds = self.timeout + self.membership.get_reduce_seconds()
            reply = await self.membership.call_member(auditor, "compare_replay", order, seconds)
            distance = messages.parse_message(messages.ReplayDistance, reply)
        except CallError as error:
            log.info("the audit of %s failed: %s", shorten(name), error)
            if isinstance(error, CallRefusedError) and error.code == "unreadable":
                self.add_blame(name, f"no audit: {error}")
            return None
        log.info("audit of %s by %s: relative distance %.1e", shorten(name), shorten(auditor), distance.relative)
        if not distance.finite:  # the model itself has diverged
            return True
        return distance.relative <= trust.get_tolerance(self.config.precision, self.config.wire)

    async def replay_micro_batch(self, micro_batch: int, target: messages.ReplayTarget) -> None:
        x, y = self.batches.get_batch(self.step, micro_batch)
        request = messages.RunRequest(step=self.step, micro_batch=micro_batch, replay=target, timeout=self.timeout)
        frame = messages.to_frame(request, x, y)
        await self.first_stage.call_stage(frame, self.config.stages, self.timeout, x.numel(), pinned=target.peer)
