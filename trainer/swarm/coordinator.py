"""One per run: who belongs, which micro-batches are missing, and when a step counts.

    python -m trainer.swarm.coordinator --folder RUN --dataset DATASET --config config.json --port 7000

A step: all micro-batches run; ledgers are compared, what is held twice is forgotten and what is missing runs again,
until each (stage, micro-batch) is held once; all members promise to hold still, add up their stage's sums and vote on
the result; the step is written to the journal; all make the update. Before that line nothing has happened that could
not be taken back, and after it nothing that could not be made up for. It may be killed at any point and started again.
"""

from __future__ import annotations

import argparse
import asyncio
import logging
import math
import signal
import sys
import time
from collections import Counter
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from trainer.arguments import Parser
from trainer.data.dataset import Dataset
from trainer.run import write_whole
from trainer.swarm import buffers, checkpoint, cover, rebalance, wire
from trainer.swarm.calls import Below
from trainer.swarm.chaos import Chaos
from trainer.swarm.config import SwarmConfig
from trainer.swarm.data import Batches
from trainer.swarm.journal import History, Journal, read
from trainer.swarm.membership import SLOW, Guest, Member, Membership, as_peer, now, raised
from trainer.swarm.transport import CallFailed, Frame, Refused, Route, Transport, Unreachable, short
from trainer.swarm.worker import STATE_BYTES

ADDRESS = "address.json"
"""In the run's folder: where this coordinator can be reached."""
BLAMES = 2
"""Attempts in which a peer's sum could not be read by another, after which it goes."""
SLOWEST = 5e5
"""Bytes a second that a peer's network should have: a step's end waits so long for its sums."""

log = logging.getLogger(__name__)


class StageLost(Exception):
    """A stage has nobody left who knows its weights."""


class Diverged(ValueError):
    """The gradient is not finite any more; there is nothing to go on with. Lower the learning rate."""


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
        chaos: Chaos | None = None,
    ) -> None:
        """`peers`: how many are waited for before the first step, at least one for each stage."""
        self.folder, self.config, self.batches, self.transport = folder, config, batches, transport
        self.patience, self.peers, self.chaos = patience, max(peers, config.stages), chaos or Chaos()
        self.rebalance_every, self.evaluate_every = rebalance_every, evaluate_every
        self.journal = Journal(folder)
        self.membership = Membership(transport, config, self.journal, patience)
        self.membership.before_join = lambda step: self.chaos.at("loaded", step)
        self.top = Below(transport)
        self.version = 0
        self.blames: Counter[str] = Counter()
        self.looked = time.monotonic()
        """When it was last looked whether somebody should change stages."""
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
        write_whole(self.folder / ADDRESS, {"peer": self.transport.peer, "addresses": self.transport.addresses})
        await self.recover()
        while self.version < self.config.steps and not self.stopping:
            try:
                await self.boundary()
                await self.step()
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
        self.version = history.version
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
        await self.rearrange()
        while self.membership.empty() or (self.version == 0 and len(self.membership.members) < self.peers):
            if self.membership.empty() and not self.recoverable():
                raise StageLost
            await asyncio.sleep(0.05)
            await self.rearrange()
        if self.version % self.config.checkpoint_every == 0:
            await self.save()
        if self.evaluate_every and self.version % self.evaluate_every == 0:
            await self.evaluate()

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

    # --- a step ---

    async def step(self) -> None:
        started, sent = time.monotonic(), self.transport.bytes_out
        self.blames.clear()
        await self.run_all(dict.fromkeys(range(self.config.micro_batches), tuple(range(self.config.stages))))
        votes: dict[str, wire.Vote] | None = None
        while votes is None:
            ledgers = await self.covered()
            await self.chaos.at("covered", self.version)
            attempt = self.membership.next_attempt()
            votes = await self.prepared(attempt, ledgers)
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
            bytes_out=self.transport.bytes_out - sent,
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
                    await self.top.run(wire.written(ask, x, y), self.config.stages, self.patience, x.numel())
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
            ask = wire.Ask(attempt=self.membership.next_attempt(), step=self.version)
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
        culprit = str(error).removeprefix("unread: ").partition(":")[0] if refused(error, "unread") else name
        if refused(error, "stale", "mismatch") or culprit not in self.membership.members:
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
        self.version += 1

    async def committed(self, name: str, order: wire.Commit) -> None:
        for last in (False, True):
            try:
                wire.read(wire.Committed, await self.membership.ask(name, "commit", order))
                return
            except CallFailed as error:
                if last or isinstance(error, Refused):
                    self.membership.evict(name, f"no update: {error}")
                    return

    # --- what else it can do ---

    async def evaluate(self, rows: int = 32) -> float:
        """Return the loss on dev, in nats a target; the same way as a step, with nothing added anywhere."""
        nats, targets = 0.0, 0
        for number, (x, y) in enumerate(self.batches.dev(rows)):
            ask = wire.Run(step=self.version, micro_batch=number, mode="nats", patience=self.patience)
            answer, _, _ = await self.top.run(wire.written(ask, x, y), self.config.stages, self.patience, x.numel())
            nats, targets = nats + float(answer.tensors[0].double().sum()), targets + int((y >= 0).sum())
        self.journal.write("evaluation", step=self.version, loss=nats / max(targets, 1), targets=targets)
        return nats / max(targets, 1)

    async def sample(self, tokens: Sequence[int], count: int, temperature: float = 0.0, seed: int = 0) -> list[int]:
        """Return tokens and what the model goes on with; a temperature of 0 takes the likeliest."""
        text, chance = list(tokens), torch.Generator().manual_seed(seed)
        for _ in range(count):
            x = torch.tensor([text[-self.config.sequence_length :]])
            ask = wire.Run(step=self.version, micro_batch=0, mode="logits", patience=self.patience)
            answer, _, _ = await self.top.run(wire.written(ask, x), self.config.stages, self.patience, x.numel())
            logits = answer.tensors[0][0]
            if temperature:
                text.append(int(torch.multinomial((logits / temperature).softmax(-1), 1, generator=chance)))
            else:
                text.append(int(logits.argmax()))
        return text

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


def numbers(ledger: wire.Ledger) -> set[int]:
    return {held.micro_batch for held in ledger.held}


def held_by(ledgers: Mapping[int, Mapping[str, wire.Ledger]]) -> dict[str, dict[str, list[int]]]:
    return {str(s): {n: sorted(numbers(ledger)) for n, ledger in peers.items()} for s, peers in ledgers.items()}


def loss_of(ledgers: Iterable[wire.Ledger]) -> float:
    """Return a step's loss by the last stage's ledgers: nats a target, summed in the order of the micro-batches."""
    held = sorted((held for ledger in ledgers for held in ledger.held), key=lambda held: held.micro_batch)
    return sum(one.nats for one in held) / max(1, sum(one.targets for one in held))


def refused(error: CallFailed, *codes: str) -> bool:
    return isinstance(error, Refused) and error.code in codes


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
    """Return a transport at the address asked for; one that was killed there may take a moment to be gone."""
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
    return flags


def main(argv: Sequence[str] | None = None) -> int:
    args = parser().parse_args(argv)
    logging.basicConfig(format="%(asctime)s %(message)s", level=logging.INFO)
    try:
        asyncio.run(coordinate(args))
    except (ValueError, OSError, Unreachable) as error:
        print(error, file=sys.stderr)  # noqa: T201
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
