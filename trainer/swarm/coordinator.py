"""The coordinator of a run: it owns the membership, the data order, the journal and the commits.

Between two steps workers join, leave and move, and checkpoints are written (`prepare_step`). A step is a transaction
(`trainer.swarm.transaction`). Everything before the journal's commit line can be undone and everything after it can be
repeated, so the coordinator may be killed at any point and restarted.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from torch import Tensor

from trainer.checkpoint.files import atomic_write_json
from trainer.errors import UserError
from trainer.swarm import checkpoint, messages, rebalance
from trainer.swarm.data import Batches
from trainer.swarm.fault_injection import FaultInjector
from trainer.swarm.frames import CallError, CallRefusedError, PeerUnreachableError, RpcFrame
from trainer.swarm.journal import Journal, JournalLine, JournalState, read_journal
from trainer.swarm.membership import LOAD_SECONDS, Admit, Guest, Membership, member_from_line
from trainer.swarm.sampling import SamplingService, SwarmText, evaluate_dev
from trainer.swarm.stage_client import StageClient, fetch_state, send_state
from trainer.swarm.transaction import StageLostError, Transaction, raise_if_diverged
from trainer.swarm.transport import Route, Transport, get_loop_time

ADDRESS_FILE = "address.json"  # File in the run's folder with this coordinator's addresses

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class CoordinatorOptions:
    timeout: float = 30.0  # Seconds after which a peer that does not reply is evicted
    peers: int = 0  # Members to wait for before the first step, at least one for each stage
    rebalance_seconds: float = rebalance.REBALANCE_SECONDS
    evaluation_interval: int = 0  # Steps between evaluations; 0: never
    required_members: Mapping[int, int] = field(default_factory=dict)
    """Numbers of members to wait for, by step. For tests."""


class Coordinator:
    def __init__(
        self,
        folder: Path,
        batches: Batches,
        transport: Transport,
        options: CoordinatorOptions,
        *,
        faults: FaultInjector | None = None,
        first_stage: StageClient | None = None,
        admit: Admit = lambda peer, hello: True,
        admit_sample: Callable[[messages.SampleRequest], bool] = lambda request: True,
        on_journal_line: Callable[[JournalLine], None] = lambda line: None,
    ) -> None:
        """`first_stage`: the client of the first stage's peers; `admit`: which workers may join; `admit_sample`: who
        may sample text."""
        self.folder, self.batches, self.config, self.transport = folder, batches, batches.config, transport
        self.options, self.timeout, self.faults = options, options.timeout, faults or FaultInjector()
        self.journal = Journal(folder, on_journal_line)
        self.membership = Membership(transport, self.config, self.journal, options.timeout, admit, self.faults)
        self.first_stage = first_stage or StageClient(transport)
        self.version = 0
        self.last_rebalance = time.monotonic()
        self.resumed = False  # Whether an earlier process of this run has begun the current step
        self.stopping = False
        list_empty_stages = self.membership.list_empty_stages
        self.sampling = SamplingService(self.build_text, batches.dataset.tokenizer, list_empty_stages, admit_sample)

    # --- the run ---

    async def train(self) -> None:
        """Start the run, or resume it from the journal, and train until the last step or `stop`."""
        await self.transport.serve(
            {
                "hello": Route(self.membership.on_hello, lambda peer: True, 2**16),
                "state": Route(self.on_state, self.is_known, 2**16),
                "sample": Route(self.sampling.on_sample, lambda peer: True, 2**16),
            }
        )
        address = {"peer": self.transport.peer, "addresses": self.transport.addresses}
        atomic_write_json(self.folder / ADDRESS_FILE, address)
        await self.recover()
        while self.version < self.config.steps and not self.stopping:
            try:
                await self.prepare_step()
                await self.build_transaction().run(resumed=self.resumed)
                self.resumed = False
                self.version += 1
            except StageLostError:
                self.roll_back()
        await self.finish()

    def stop(self) -> None:
        """Stop after the current step."""
        self.stopping = True

    def is_known(self, peer: str) -> bool:
        return peer in self.membership.guests or peer in self.membership.members

    def build_text(self) -> SwarmText:
        return SwarmText(self.first_stage, self.config, lambda: self.version, self.timeout)

    def build_transaction(self) -> Transaction:
        return Transaction(self.version, self.batches, self.membership, self.first_stage)

    # --- restart ---

    async def recover(self) -> None:
        """Restore the state from the journal, complete an unfinished commit and evict members that are gone."""
        state = JournalState.from_lines(read_journal(self.folder))
        config = self.config.model_dump(mode="json")
        if state.config is None:
            self.journal.write("run", config=config)
        elif state.config != config:
            raise UserError(f"{self.folder} holds another run: use another folder, or that run's configuration")
        self.membership.generation = state.generation + 1
        self.journal.write("start", generation=self.membership.generation)
        self.version, self.resumed = state.version, bool(state.members)
        if state.config is None:  # another machine's checkpoint may have been placed here
            self.version = checkpoint.find_latest(self.folder, self.config) or 0
        for line in state.members.values():
            member = member_from_line(line)
            self.transport.add_addresses(member.name, member.peer.addresses)
            hello = messages.Hello(label=member.label, addresses=member.peer.addresses)
            self.membership.guests.setdefault(member.name, Guest(hello, get_loop_time()))
            self.membership.members[member.name] = member
        await asyncio.gather(*(self.restore_member(name, state.commit) for name in state.members))

    async def restore_member(self, name: str, commit: JournalLine | None) -> None:
        """Keep a member that is at the journal's step, or can be brought there by the last commit."""
        member = self.membership.members[name]
        try:
            reply = await self.call_with_retries(name, "position", messages.PositionRequest())
            position = messages.parse_message(messages.Position, reply)
            stage, step = position.stage, position.step
            if (stage, step) == (member.stage, self.version - 1) and commit is not None:
                reply = await self.call_with_retries(name, "commit", commit_from_line(commit))
                step = messages.parse_message(messages.Committed, reply).step
            if (stage, step) != (member.stage, self.version):
                raise CallRefusedError("elsewhere", f"at stage {stage}, step {step}")
        except CallError as error:
            self.membership.evict(name, f"lost at a restart of the coordinator: {error}")

    async def call_with_retries(self, name: str, method: str, message: Any) -> RpcFrame:
        """Call a worker, with pauses if it is unreachable: it may have to connect to the new coordinator first."""
        for pause in (0.3, 0.7, 1.5):
            try:
                return await self.membership.call_member(name, method, message)
            except PeerUnreachableError:
                await asyncio.sleep(pause)
        return await self.membership.call_member(name, method, message)

    # --- between two steps ---

    async def prepare_step(self) -> None:
        """Update the membership until every stage has a member; then save and evaluate if due."""
        while True:
            if self.membership.list_empty_stages() and not self.is_recoverable():
                raise StageLostError
            await self.update_members()
            if not self.membership.list_empty_stages() and self.has_enough_members():
                break
            await asyncio.sleep(0.05)
        if self.version % self.config.checkpoint_every == 0:
            await self.save()
        if self.options.evaluation_interval and self.version % self.options.evaluation_interval == 0:
            await self.evaluate()

    def has_enough_members(self) -> bool:
        required, count = self.options.required_members.get(self.version), len(self.membership.members)
        return self.is_enough_to_start(count) if required is None else count == required

    def is_enough_to_start(self, count: int) -> bool:
        return self.version > 0 or count >= max(self.options.peers, self.config.stages)

    def is_recoverable(self) -> bool:
        """Return whether a stage without members can be restored at this version: from the seed or a checkpoint."""
        return self.version in (0, checkpoint.find_latest(self.folder, self.config))

    async def update_members(self) -> None:
        """Let members that are leaving go, let waiting workers join, and rebalance."""
        members = self.membership
        for name in [n for n in members.members if n in members.guests and members.guests[n].hello.leaving]:
            if len(members.get_stage_members(members.members[name].stage)) > 1 or self.is_recoverable():
                members.evict(name, "wants to leave")
        waiting = {name: guest.hello.preferred_stage for name, guest in members.list_waiting().items()}
        if waiting and self.is_enough_to_start(len(waiting) + len(members.members)):
            await members.add_workers(waiting, self.version, self.get_sources)
        await members.publish()
        await self.rebalance()
        self.first_stage.set_peers(member.name for member in members.get_stage_members(0))

    async def rebalance(self) -> None:
        """Move one member to a stage that needs it more, if the interval is over or a stage has fewer than two."""
        members = self.membership
        speeds = members.estimate_speeds()
        is_urgent = min(len(peers) for peers in speeds.values()) < 2
        if not is_urgent and time.monotonic() - self.last_rebalance < self.options.rebalance_seconds:
            return
        self.last_rebalance = time.monotonic()
        move = rebalance.propose_move(speeds)
        if move is not None and (speeds[move.target] or self.is_recoverable()):
            self.journal.write("move", peer=move.peer, source=move.source, target=move.target, step=self.version)
            members.evict(move.peer, f"moves to stage {move.target}")
            await members.add_workers({move.peer: move.target}, self.version, self.get_sources)

    def get_sources(self, stage: int) -> tuple[messages.Peer, ...]:
        """Return the peers that have a stage's state at this version: its members, or else this process, or none."""
        peers = tuple(member.peer for member in self.membership.get_stage_members(stage))
        if peers or self.version not in checkpoint.list_versions(self.folder, self.config):
            return peers
        return (messages.Peer(name=self.transport.peer, addresses=self.transport.addresses),)

    async def on_state(self, _: str, frame: RpcFrame) -> AsyncIterator[RpcFrame]:
        request = messages.parse_message(messages.StateRequest, frame)
        try:
            arguments = self.folder, self.config, request.stage, request.step
            state = await asyncio.to_thread(checkpoint.load_stage, *arguments)
        except ValueError as error:
            raise CallRefusedError("unreadable", str(error)) from error
        async for part in send_state(state):
            yield part

    # --- checkpoints and evaluation ---

    async def save(self) -> None:
        """Write a checkpoint of this version, each stage's state from one of its members."""
        if self.version in checkpoint.list_versions(self.folder, self.config):
            return
        for stage in range(self.config.stages):
            if stage:
                await self.faults.trigger("checkpoint", self.version)
            state = await self.fetch_stage_state(stage)
            await asyncio.to_thread(checkpoint.save_stage, self.folder, self.config, stage, self.version, state)
        checkpoint.prune_versions(self.folder, self.config, keep=2)
        self.journal.write("checkpoint", step=self.version)

    async def fetch_stage_state(self, stage: int) -> dict[str, Tensor]:
        """Read a stage's state from one of its members. Evict members that fail to send it."""
        for member in self.membership.get_stage_members(stage):
            try:
                request = messages.StateRequest(stage=stage, step=self.version)
                return await fetch_state(self.transport, member.name, request, self.timeout)
            except (CallError, ValueError) as error:
                self.membership.evict(member.name, f"sent no state: {error}")
        raise StageLostError

    def roll_back(self) -> None:
        """Return to the last checkpoint with the remaining members, because a stage has lost its weights."""
        lost, target = self.membership.list_empty_stages(), checkpoint.find_latest(self.folder, self.config) or 0
        log.warning("stages %s are lost: back from step %d to %d", lost, self.version, target)
        self.journal.write("rollback", to=target, lost=lost, **{"from": self.version})
        self.version = target
        remaining = self.membership.members.copy()
        for member in remaining.values():
            self.membership.evict(member.name, f"goes back to step {target}")
        for member in remaining.values():  # they request the same stage: its blocks are already built
            guest = self.membership.guests[member.name]
            guest.hello, guest.seen = guest.hello.model_copy(update={"preferred_stage": member.stage}), get_loop_time()

    async def evaluate(self) -> None:
        """Record the loss on dev. If a peer fails meanwhile, find out which and start over."""
        while True:
            try:
                loss, targets = await evaluate_dev(self.first_stage, self.batches, self.version, self.timeout)
                self.journal.write("evaluation", step=self.version, loss=loss, targets=targets)
                return
            except CallRefusedError as error:
                raise_if_diverged(error, self.version)
                log.info("the evaluation failed: %s", error)
                await self.build_transaction().collect_ledgers()

    # --- the end ---

    async def finish(self) -> None:
        """Save the last version and shut down all workers."""
        try:
            await self.save()
        except StageLostError:
            log.warning("the last version could not be saved; the previous checkpoint remains")
        digests = await self.collect_digests()
        self.membership.finished = self.version >= self.config.steps
        self.journal.write("end", step=self.version, digests=digests)
        why = "The run is finished." if self.membership.finished else "The run has been stopped."
        workers = {*self.membership.members, *self.membership.list_waiting()}
        await self.membership.call_members(dict.fromkeys(workers, messages.Shutdown(why=why)), "shutdown", 2)
        self.journal.close()

    async def collect_digests(self) -> dict[str, dict[str, str | None]]:
        """Return the digest of each member's weights, by stage."""
        request = messages.PositionRequest(digest=True)
        calls = dict.fromkeys(self.membership.members, request)
        digests: dict[str, dict[str, str | None]] = {str(stage): {} for stage in range(self.config.stages)}
        for name, reply in (await self.membership.call_members(calls, "position", LOAD_SECONDS)).items():
            if isinstance(reply, RpcFrame):
                stage = str(self.membership.members[name].stage)
                digests[stage][name] = messages.parse_message(messages.Position, reply).digest
        return digests


def commit_from_line(line: Mapping[str, Any]) -> messages.Commit:
    """Return the commit order that a journal's line describes."""
    return messages.Commit(**{name: line[name] for name in ("attempt", "step", "factor", "clip_scale")})
