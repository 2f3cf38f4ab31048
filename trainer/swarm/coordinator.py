"""One per run: who belongs, which micro-batches are missing, and when a step counts.

    python -m trainer.swarm.coordinator --folder RUN --dataset DATASET --config config.json --port 7000

Between two steps machines come and go, move and are saved (`boundary`); a step is a transaction (`trainer.swarm.
transaction`). Before a step's line in the journal nothing has happened that could not be taken back, and after it
nothing that could not be made up for: the coordinator may be killed at any point and started again.
"""

from __future__ import annotations

import argparse
import asyncio
import logging
import signal
import sys
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from torch import Tensor

from trainer.checkpoint.json_files import atomic_write_json
from trainer.cli.parser import Parser
from trainer.data.dataset import Dataset
from trainer.swarm import checkpoint, rebalance, wire
from trainer.swarm.asking import evaluate
from trainer.swarm.calls import Below
from trainer.swarm.chaos import Chaos
from trainer.swarm.config import SwarmConfig
from trainer.swarm.data import Batches
from trainer.swarm.frames import CallFailed, Frame, Refused, Unreachable
from trainer.swarm.journal import History, Journal, read
from trainer.swarm.membership import SLOW, Guest, Member, Membership, as_peer, now
from trainer.swarm.transaction import StageLost, Transaction
from trainer.swarm.transport import Route, Transport
from trainer.swarm.worker import STATE_BYTES

ADDRESS = "address.json"
"""In the run's folder: where this coordinator can be reached."""

log = logging.getLogger(__name__)


class Coordinator:
    def __init__(
        self,
        folder: Path,
        config: SwarmConfig,
        batches: Batches,
        transport: Transport,
        *,
        patience: float = 30.0,
        peers: int = 0,
        rebalance_every: float = rebalance.EVERY,
        evaluate_every: int = 0,
        waits: Mapping[int, int] | None = None,
        chaos: Chaos | None = None,
    ) -> None:
        """`peers`: how many are waited for before the first step, at least one for each stage. `waits`: steps before
        which it waits until exactly so many belong, for tests."""
        self.folder, self.config, self.batches, self.transport = folder, config, batches, transport
        self.patience, self.peers, self.chaos = patience, max(peers, config.stages), chaos or Chaos()
        self.waits = waits or {}
        self.rebalance_every, self.evaluate_every = rebalance_every, evaluate_every
        self.journal = Journal(folder)
        self.membership = Membership(transport, config, self.journal, patience)
        self.membership.before_join = lambda step: self.chaos.at("loaded", step)
        self.top = Below(transport)
        self.version = 0
        self.looked = time.monotonic()
        """When it was last looked whether somebody should change stages."""
        self.resumed = False
        """Whether an earlier start of this process has begun this step."""
        self.stopping = False

    # --- the run ---

    async def train(self) -> None:
        """Begin, or go on where the journal ends, until the last step or `stop`."""
        await self.transport.serve(
            {
                "hello": Route(self.membership.on_hello, lambda peer: True, 2**16),
                "state": Route(self.on_state, self.is_known, 2**16),
            }
        )
        atomic_write_json(self.folder / ADDRESS, {"peer": self.transport.peer, "addresses": self.transport.addresses})
        await self.recover()
        while self.version < self.config.steps and not self.stopping:
            try:
                await self.boundary()
                await self.step()
                self.version += 1
            except StageLost:
                self.roll_back()
        await self.end()

    def stop(self) -> None:
        """End after the step that is being made."""
        self.stopping = True

    def is_known(self, peer: str) -> bool:
        return peer in self.membership.guests or peer in self.membership.members

    async def recover(self) -> None:
        """Go on from the journal: make up for a commit that not everybody has heard of, and find who is still there."""
        history = History.of(read(self.folder))
        config = self.config.model_dump(mode="json")
        if history.config is None:
            self.journal.write("run", config=config)
        elif history.config != config:
            raise ValueError(f"{self.folder} holds another run: take another folder, or the configuration it has")
        self.membership.generation = history.generation + 1
        self.journal.write("start", generation=self.membership.generation)
        self.version, self.resumed = history.version, bool(history.members)
        if history.config is None:  # what another machine's coordinator saved may have been laid out here
            self.version = checkpoint.latest(self.folder, self.config) or 0
        for line in history.members.values():
            peer = as_peer(line)
            self.transport.know(peer.name, peer.addresses)
            hello = wire.Hello(run="", label=line["label"], addresses=peer.addresses)
            self.membership.guests.setdefault(peer.name, Guest(hello, now()))
            about = (line["stage"], line["step"], line["label"], line["slots"], line["parameters"])
            self.membership.members[peer.name] = Member(peer, *about)
        await asyncio.gather(*(self.found_again(name, history) for name in history.members))

    async def found_again(self, name: str, history: History) -> None:
        """Keep a member if it is where the journal says, or can be brought there."""
        member = self.membership.members[name]
        try:
            where = wire.read(wire.Where, await self.asked_again(name, "where", wire.AskWhere()))
            if (where.stage, where.step) == (member.stage, self.version - 1) and history.commit is not None:
                order = order_of(history.commit)
                answer = await self.asked_again(name, "commit", order)
                where = where.model_copy(update={"step": wire.read(wire.Committed, answer).step})
            if (where.stage, where.step) != (member.stage, self.version):
                raise Refused("elsewhere", f"at stage {where.stage}, step {where.step}")
        except CallFailed as error:
            self.membership.evict(name, f"not found again: {error}")

    async def asked_again(self, name: str, method: str, message: Any) -> Frame:
        """Ask, and where nobody answers wait a moment: it may first have to find its way to the new coordinator."""
        for pause in (0.3, 0.7, 1.5):
            try:
                return await self.membership.ask(name, method, message)
            except Unreachable:
                await asyncio.sleep(pause)
        return await self.membership.ask(name, method, message)

    # --- between two steps ---

    async def boundary(self) -> None:
        """Let come and go who wants to, until every stage has somebody; then save and evaluate what is due."""
        while True:
            if self.membership.empty() and not self.recoverable():
                raise StageLost
            await self.rearrange()
            if not self.membership.empty() and self.are_enough(len(self.membership.members)):
                break
            await asyncio.sleep(0.05)
        if self.version % self.config.checkpoint_every == 0:
            await self.save()
        if self.evaluate_every and self.version % self.evaluate_every == 0:
            await self.evaluate()

    def are_enough(self, members: int) -> bool:
        if self.version in self.waits:
            return members == self.waits[self.version]
        return self.version > 0 or members >= self.peers

    def recoverable(self) -> bool:
        """Is there another way to this version of a stage that nobody holds?"""
        return self.version in (0, checkpoint.latest(self.folder, self.config))

    async def rearrange(self) -> None:
        members = self.membership
        for name in [n for n in members.members if n in members.guests and members.guests[n].hello.leaving]:
            if len(members.at_stage(members.members[name].stage)) > 1 or self.recoverable():
                members.evict(name, "wants to leave")
        waiting: dict[str, int | None] = {name: guest.hello.wish for name, guest in members.waiting().items()}
        enough = self.version > 0 or len(waiting) + len(members.members) >= self.peers
        if waiting and enough:
            await members.seat(waiting, self.version, self.sources)
        await members.publish()
        await self.rebalance()
        self.top.now_are(member.name for member in members.at_stage(0))

    async def rebalance(self) -> None:
        """Move one member to where it helps more, when it is time or a stage has fewer than two."""
        members = self.membership
        speeds = members.speeds()
        urgent = min(len(peers) for peers in speeds.values()) < 2
        if not urgent and time.monotonic() - self.looked < self.rebalance_every:
            return
        self.looked = time.monotonic()
        move = rebalance.propose(speeds)
        if move is not None and (speeds[move.target] or self.recoverable()):
            self.journal.write("move", peer=move.peer, source=move.source, target=move.target, step=self.version)
            members.evict(move.peer, f"moves to stage {move.target}")
            await members.seat({move.peer: move.target}, self.version, self.sources)

    def sources(self, stage: int) -> tuple[wire.Peer, ...]:
        """Return who has a stage's state at this version: its members, else this process, else nobody."""
        peers = tuple(member.peer for member in self.membership.at_stage(stage))
        if peers or self.version not in checkpoint.versions(self.folder, self.config):
            return peers
        return (wire.Peer(name=self.transport.peer, addresses=self.transport.addresses),)

    async def on_state(self, _: str, frame: Frame) -> AsyncIterator[Frame]:
        ask = wire.read(wire.StateOf, frame)
        try:
            state = await asyncio.to_thread(checkpoint.read_stage, self.folder, self.config, ask.stage, ask.step)
        except ValueError as error:
            raise Refused("unread", str(error)) from error
        for name, tensor in state.items():
            yield wire.written(wire.Named(name=name), tensor)

    async def save(self) -> None:
        """Write a checkpoint of this version, each stage's state from one of its members."""
        if self.version in checkpoint.versions(self.folder, self.config):
            return
        for stage in range(self.config.stages):
            if stage:
                await self.chaos.at("checkpoint", self.version)
            state = await self.state_of(stage)
            await asyncio.to_thread(checkpoint.write_stage, self.folder, self.config, stage, self.version, state)
        checkpoint.prune(self.folder, self.config, keep=2)
        self.journal.write("checkpoint", step=self.version)

    async def state_of(self, stage: int) -> dict[str, Tensor]:
        """Read a stage's state from one of its members; who cannot give it goes."""
        for member in self.membership.at_stage(stage):
            state: dict[str, Tensor] = {}
            try:
                body = wire.written(wire.StateOf(stage=stage, step=self.version))
                async for part in self.transport.stream(member.name, "state", body, self.patience, STATE_BYTES):
                    (state[wire.read(wire.Named, part).name],) = part.tensors
                return state
            except (CallFailed, ValueError) as error:
                self.membership.evict(member.name, f"gave no state: {error}")
        raise StageLost

    def roll_back(self) -> None:
        """Go back to the last checkpoint, with all who are left: the weights of a stage are gone."""
        lost, target = self.membership.empty(), checkpoint.latest(self.folder, self.config) or 0
        log.warning("stages %s are lost: back from step %d to %d", lost, self.version, target)
        self.journal.write("rollback", to=target, lost=lost, **{"from": self.version})
        self.version = target
        left = self.membership.members.copy()
        for member in left.values():
            self.membership.evict(member.name, f"goes back to step {target}")
        for member in left.values():  # each to the stage it had, whose blocks it has made already
            guest = self.membership.guests[member.name]
            guest.hello, guest.seen = guest.hello.model_copy(update={"wish": member.stage}), now()

    async def evaluate(self) -> None:
        """Note the loss on dev. If somebody is lost meanwhile it is found out who, and begun again."""
        while True:
            try:
                loss, targets = await evaluate(self.top, self.config, self.batches, self.version, self.patience)
                self.journal.write("evaluation", step=self.version, loss=loss, targets=targets)
                return
            except Refused as error:
                log.info("the evaluation broke off: %s", error)
                await self.transaction().ledgers()

    def transaction(self) -> Transaction:
        return Transaction(self.version, self.config, self.batches, self.membership, self.top, self.chaos)

    async def step(self) -> None:
        await self.transaction().make(resumed=self.resumed)
        self.resumed = False

    # --- the end ---

    async def end(self) -> None:
        """Save the last version and send everybody home."""
        try:
            await self.save()
        except StageLost:
            log.warning("the last version could not be saved: the checkpoint before it is what there is")
        digests = await self.final_digests()
        self.membership.finished = self.version >= self.config.steps
        self.journal.write("end", step=self.version, digests=digests)
        bye = wire.Bye(why="The run is finished." if self.membership.finished else "The run has been stopped.")
        everybody = dict.fromkeys({*self.membership.members, *self.membership.waiting()}, bye)
        await self.membership.ask_each(everybody, "bye", 2)
        self.journal.close()

    async def final_digests(self) -> dict[str, dict[str, str | None]]:
        """Return the digest of each member's weights, by stage."""
        ask = wire.AskWhere(digest=True)
        answers = await self.membership.ask_each(dict.fromkeys(self.membership.members, ask), "where", SLOW)
        found: dict[str, dict[str, str | None]] = {str(stage): {} for stage in range(self.config.stages)}
        for name, answer in answers.items():
            if isinstance(answer, Frame):
                found[str(self.membership.members[name].stage)][name] = wire.read(wire.Where, answer).digest
        return found


def order_of(line: Mapping[str, Any]) -> wire.Commit:
    """Return the order that a journal's line stands for."""
    return wire.Commit(**{name: line[name] for name in ("attempt", "step", "factor", "clip_scale")})


# --- the process -----------------------------------------------------------------------------------------------------


async def coordinate(args: argparse.Namespace) -> None:
    config = SwarmConfig.model_validate_json(args.config.read_bytes())
    batches = Batches(Dataset.open(args.dataset), config)
    transport = await started(args)
    coordinator = Coordinator(
        args.folder,
        config,
        batches,
        transport,
        patience=args.patience,
        peers=args.peers,
        rebalance_every=args.rebalance_every,
        evaluate_every=args.evaluate_every,
        waits=dict(map(int, wait.split(":")) for wait in args.wait_for),
        chaos=Chaos.of(args.faults),
    )
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, coordinator.stop)
    try:
        await coordinator.train()
    finally:
        await transport.close()


async def started(args: argparse.Namespace, attempts: int = 20) -> Transport:
    """Return a transport at the address asked for; one that was killed there may take a moment to be gone.

    Raise `Led`, before anything of this one's can be seen outside, if the run has a coordinator.
    """
    Journal(args.folder).close()
    host, _, port = args.listen.rpartition(":")
    for attempt in range(attempts):
        transport = Transport(args.folder)
        try:
            await transport.start(host, int(port), args.announce, serves_as_relay=args.serve_as_relay)
            return transport
        except Unreachable:
            await transport.close()
            if attempt + 1 == attempts:
                raise
            await asyncio.sleep(0.25)
    raise AssertionError


def parser() -> Parser:
    flags = Parser(prog="python -m trainer.swarm.coordinator", description="Lead a swarm's run.")
    flags.add_argument("--folder", required=True, type=Path, help="the run's: journal, checkpoints, this one's key")
    flags.add_argument("--dataset", required=True, type=Path, help="a prepared dataset")
    flags.add_argument("--config", required=True, type=Path, help="the run's configuration, JSON")
    flags.add_argument("--listen", default="127.0.0.1:0", help="host:port that all peers can reach")
    flags.add_argument("--announce", action="append", default=[], help="address that peers should use instead")
    flags.add_argument("--serve-as-relay", action="store_true", help="pass on connections to peers nobody can dial")
    flags.add_argument("--peers", type=int, default=0, help="how many to wait for before the first step")
    flags.add_argument("--patience", type=float, default=30.0, help="seconds after which a peer counts as lost")
    flags.add_argument("--rebalance-every", type=float, default=rebalance.EVERY, help="seconds")
    flags.add_argument("--evaluate-every", type=int, default=0, help="steps; 0: never")
    flags.add_argument("--faults", help=argparse.SUPPRESS)
    flags.add_argument("--wait-for", action="append", default=[], help=argparse.SUPPRESS)  # STEP:MEMBERS
    return flags


def main(argv: Sequence[str] | None = None) -> int:
    args = parser().parse_args(argv)
    logging.basicConfig(format="%(asctime)s %(message)s", level=logging.INFO)
    try:
        asyncio.run(coordinate(args))
    except (ValueError, OSError, Unreachable) as error:
        print(" ".join(str(error).split()), file=sys.stderr)  # noqa: T201
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
