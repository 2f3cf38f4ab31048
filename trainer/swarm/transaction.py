"""One training step as a transaction: it takes effect exactly once, or not at all.

1. Run all micro-batches.
2. Compare the ledgers: reset what is held twice, rerun what is missing, until each (stage, micro-batch) is held once.
3. All members freeze, sum up their stage's gradients and vote on the result.
4. Write the step to the journal.
5. All members make the update. A member that does not is evicted.
"""

from __future__ import annotations

import asyncio
import logging
import math
import operator
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from statistics import median_low
from typing import TypeVar

from trainer.errors import DivergenceError
from trainer.swarm import buffers, cover, messages, trust
from trainer.swarm.audit import Audit
from trainer.swarm.data import Batches
from trainer.swarm.frames import CallError, CallRefusedError, MalformedFrameError, RpcFrame
from trainer.swarm.membership import Membership, raise_if_failed
from trainer.swarm.stage_client import DIVERGED, StageClient
from trainer.swarm.sum_exchange import gather_or_cancel
from trainer.swarm.transport import shorten

MAX_BLAMES = 2  # A peer is evicted after this many attempts in which others could not read its gradient sum
NORM_TOLERANCE = 1e-3
"""Largest relative difference between two members' squared norms of one mean: each may add in another order."""

ResultT = TypeVar("ResultT")

log = logging.getLogger(__name__)


class StageLostError(Exception):
    """A stage has no members, so its weights are lost."""


class DivergedError(DivergenceError):
    """The gradient or a hidden state is not finite."""

    def __init__(self, step: int, what: str) -> None:
        super().__init__(f"step {step}: {what} is not finite; try a lower learning rate")


class Transaction:
    def __init__(self, step: int, batches: Batches, membership: Membership, first_stage: StageClient) -> None:
        self.version, self.batches, self.membership, self.first_stage = step, batches, membership, first_stage
        self.config, self.faults, self.timeout = batches.config, membership.faults, membership.timeout
        self.blames: Counter[str] = Counter()

    async def run(self, resumed: bool = False) -> None:
        """Run the step; raise `StageLostError` without any effect if it cannot be completed.

        `resumed`: an earlier coordinator process has begun this step; the ledgers show how far it got.
        """
        started = time.monotonic()
        if not resumed:
            stages = tuple(range(self.config.stages))
            await self.run_micro_batches(dict.fromkeys(range(self.config.micro_batches), stages))
        votes: dict[str, messages.Vote] | None = None
        while votes is None:
            ledgers = await self.reach_exact_cover()
            await self.faults.trigger("covered", self.version)
            attempt = self.membership.next_attempt()
            votes = await self.collect_votes(attempt, ledgers)
            if votes is not None and await self.build_audit(attempt, ledgers, votes).run():
                votes = None
        await self.faults.trigger("voted", self.version)
        norm = self.compute_squared_norm(votes)
        factor, clip_scale = self.config.get_rate_factor(self.version), self.config.compute_clip_scale(norm)
        order = messages.Commit(attempt=attempt, step=self.version, factor=factor, clip_scale=clip_scale)
        self.write_commit(order, ledgers, votes, norm, time.monotonic() - started)
        await self.faults.trigger("journaled", self.version)
        await self.commit(order)

    def build_audit(self, attempt: int, ledgers: messages.LedgersByStage, votes: Mapping[str, messages.Vote]) -> Audit:
        return Audit(
            self.version, attempt, ledgers, votes, self.batches, self.membership, self.first_stage, self.add_blame
        )

    def compute_squared_norm(self, votes: Mapping[str, messages.Vote]) -> float:
        """Return the squared norm of the whole model's mean gradient; raise `DivergedError` if it is not finite."""
        stages = self.membership.list_stages()
        norm = sum(median_low(votes[member.name].squared_norm for member in members) for members in stages)
        if not math.isfinite(norm):
            raise DivergedError(self.version, "the gradient")
        return norm

    def write_commit(
        self,
        order: messages.Commit,
        ledgers: messages.LedgersByStage,
        votes: Mapping[str, messages.Vote],
        norm: float,
        seconds: float,
    ) -> None:
        self.membership.journal.write(
            "commit",
            **order.model_dump(),
            norm=math.sqrt(norm),
            loss=compute_loss(ledgers[self.config.stages - 1].values()),
            cover={str(s): {n: sorted(get_held(ledger)) for n, ledger in p.items()} for s, p in ledgers.items()},
            votes={str(s): {name: votes[name].digest for name in peers} for s, peers in ledgers.items()},
            seconds=round(seconds, 4),
        )

    async def run_micro_batches(self, needs: Mapping[int, tuple[int, ...]]) -> int:
        """Run micro-batches, as many at once as the workers have slots for; return how many completed.

        `needs`: for each micro-batch, the stages that lack its gradient.
        """
        slots = [[member.slots for member in members] for members in self.membership.list_stages()]
        semaphore = asyncio.Semaphore(buffers.limit_in_flight(slots, 2 * max(map(len, slots)) + self.config.stages))

        async def run_one(number: int, need: tuple[int, ...]) -> bool:
            async with semaphore:
                return await self.run_micro_batch(number, need)

        return sum(await gather_or_cancel(run_one(number, need) for number, need in needs.items()))

    async def run_micro_batch(self, number: int, need: tuple[int, ...]) -> bool:
        x, y = self.batches.get_batch(self.version, number)
        request = messages.RunRequest(step=self.version, micro_batch=number, need=need, timeout=self.timeout)
        frame = messages.to_frame(request, x, y)
        try:
            await self.first_stage.call_stage(frame, self.config.stages, self.timeout, x.numel(), reject_tensors)
        except CallRefusedError as error:
            raise_if_diverged(error, self.version)
            log.info("micro-batch %d failed: %s", number, error)
            return False
        await self.faults.trigger("runs", self.version)
        return True

    # --- exact cover ---

    async def reach_exact_cover(self) -> messages.LedgersByStage:
        """Repair until every (stage, micro-batch) is held exactly once; return the ledgers of that state."""
        while True:
            ledgers = await self.collect_ledgers()
            held = {s: {n: get_held(ledger) for n, ledger in peers.items()} for s, peers in ledgers.items()}
            resets = cover.peers_to_reset(held)
            order = messages.DropStep(attempt=self.membership.next_attempt(), step=self.version)
            self.membership.evict_failed(await self.membership.call_members(dict.fromkeys(resets, order), "drop"))
            held = {s: {n: set() if n in resets else h for n, h in peers.items()} for s, peers in held.items()}
            needs = cover.find_missing(held, self.config.micro_batches)
            if not needs and not resets:
                return ledgers
            await self.publish_members()
            log.info("step %d: %d to run again, reset: %s", self.version, len(needs), list(map(shorten, resets)))
            if not await self.run_micro_batches(needs):
                await asyncio.sleep(0.05)

    async def collect_ledgers(self) -> messages.LedgersByStage:
        """Return all members' ledgers. Evict members that do not reply in time, and ban those that others blame."""
        request = messages.StepRequest(attempt=self.membership.next_attempt(), step=self.version)
        replies = await self.membership.call_members(dict.fromkeys(self.membership.members, request), "ledger")
        ledgers: messages.LedgersByStage = {stage: {} for stage in range(self.config.stages)}
        for name, reply in replies.items():
            member = self.membership.members[name]
            try:
                ledger = messages.parse_message(messages.Ledger, raise_if_failed(reply))
            except CallError as error:
                self.membership.evict(name, f"no ledger: {error}")
                continue
            ledgers[member.stage][name], member.throughput = ledger, ledger.throughput
        for name, reason in trust.peers_to_ban(ledgers, self.first_stage.blamed).items():
            self.membership.ban(name, reason)
        await self.publish_members()
        members = self.membership.members
        return {s: {n: ledger for n, ledger in peers.items() if n in members} for s, peers in ledgers.items()}

    async def publish_members(self) -> None:
        """Publish changes of the membership; raise `StageLostError` if a stage has no members."""
        await self.membership.publish()
        self.first_stage.set_peers(member.name for member in self.membership.get_stage_members(0))
        if self.membership.list_empty_stages():
            raise StageLostError

    # --- votes ---

    async def collect_votes(self, attempt: int, ledgers: messages.LedgersByStage) -> dict[str, messages.Vote] | None:
        """Have all members freeze, reduce and vote. Return None if one failed or the votes of a stage differ."""
        timeout = self.timeout + self.membership.get_reduce_seconds()
        order = messages.Prepare(attempt=attempt, step=self.version, held=(), peers=(), timeout=timeout)
        orders = {}
        for peers in ledgers.values():
            for name, ledger in peers.items():
                held = tuple(sorted(get_held(ledger)))
                orders[name] = order.model_copy(update={"held": held, "peers": tuple(sorted(peers))})
        replies = await self.membership.call_members(orders, "prepare", timeout + self.timeout / 2)
        votes, errors = dict[str, messages.Vote](), dict[str, CallError]()
        for name, reply in replies.items():
            try:
                votes[name] = messages.parse_message(messages.Vote, raise_if_failed(reply))
            except CallError as error:
                errors[name] = error
        for name, error in errors.items():
            self.assign_blame(name, error)
        return votes if not errors and not self.evict_outvoted(ledgers, votes, is_same_result) else None

    def assign_blame(self, name: str, error: CallError) -> None:
        """Record why a member did not vote, and evict the cause: itself, or the peer whose sum it could not read."""
        code, culprit = error.code if isinstance(error, CallRefusedError) else "", name
        if isinstance(error, CallRefusedError) and code == "unreadable":
            culprit = error.message.partition(":")[0]
        if code not in ("stale", "mismatch"):
            self.add_blame(culprit, f"no vote: {error}", 1 if isinstance(error, CallRefusedError) else MAX_BLAMES)

    def add_blame(self, name: str, reason: str, count: int = 1) -> None:
        self.blames[name] += count
        if self.blames[name] >= MAX_BLAMES:
            self.membership.evict(name, reason)

    def evict_outvoted(
        self,
        stages: Iterable[int],
        results: Mapping[str, ResultT],
        is_equal: Callable[[ResultT, ResultT], bool] = operator.eq,
    ) -> bool:
        """Evict members whose result differs from that of most of their stage; return whether there were any."""
        outvoted = [name for stage in stages for name in self.find_outvoted(stage, results, is_equal)]
        for name in outvoted:
            self.membership.evict(name, "its result differs from the others' of its stage")
        return bool(outvoted)

    def find_outvoted(
        self, stage: int, results: Mapping[str, ResultT], is_equal: Callable[[ResultT, ResultT], bool]
    ) -> list[str]:
        """Return a stage's members that voted against the majority. In a tie the oldest member's vote decides."""
        peers = [m for m in self.membership.get_stage_members(stage) if m.name in results]
        oldest = min(peers, key=lambda member: (member.since, member.name))
        candidates = [oldest, *(peer for peer in peers if peer is not oldest)]
        winner = max(candidates, key=lambda one: sum(is_equal(results[one.name], results[m.name]) for m in peers))
        return [member.name for member in peers if not is_equal(results[winner.name], results[member.name])]

    # --- commit ---

    async def commit(self, order: messages.Commit) -> None:
        """Have all members make the update, and evict those that do not confirm: the others have the whole sum."""
        commits = [asyncio.ensure_future(self.commit_member(name, order)) for name in list(self.membership.members)]
        for done in asyncio.as_completed(commits):
            await done
            await self.faults.trigger("committed", self.version)

    async def commit_member(self, name: str, order: messages.Commit) -> None:
        try:
            messages.parse_message(messages.Committed, await self.membership.call_member(name, "commit", order))
        except CallError as error:
            self.membership.evict(name, f"no update: {error}")


def raise_if_diverged(error: CallRefusedError, step: int) -> None:
    """Raise `DivergedError` if all peers of the first stage refused a micro-batch because the model has diverged."""
    if error.code == DIVERGED:
        raise DivergedError(step, "a hidden state") from error


def reject_tensors(_: str, reply: RpcFrame) -> str:
    """Raise `MalformedFrameError` if the first stage replies with a tensor: there is no gradient of tokens."""
    if reply.tensors:
        raise MalformedFrameError("an unexpected tensor")
    return ""


def is_same_result(one: messages.Vote, other: messages.Vote) -> bool:
    """Return whether two votes are for the same weights and mean, and agree on its norm or that it is not finite."""
    norms = one.squared_norm, other.squared_norm
    is_same_norm = math.isclose(*norms, rel_tol=NORM_TOLERANCE) or not any(map(math.isfinite, norms))
    return one.digest == other.digest and is_same_norm


def get_held(ledger: messages.Ledger) -> set[int]:
    return {held.micro_batch for held in ledger.held}


def compute_loss(ledgers: Iterable[messages.Ledger]) -> float:
    """Return the loss in nats per target from the last stage's ledgers, summed in the order of the micro-batches."""
    held = sorted((held for ledger in ledgers for held in ledger.held), key=lambda held: held.micro_batch)
    return sum(entry.nats for entry in held) / max(1, sum(entry.targets for entry in held))
