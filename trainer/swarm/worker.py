"""One peer of a swarm: it computes a stage for whoever brings a micro-batch, and calls the next stage for it.

    python -m trainer.swarm.worker --coordinator /ip4/.../tcp/.../p2p/... --folder DIR

asyncio for everything that waits, one thread (the lane) for everything that touches the stage. A micro-batch on its way
down is a call within a call: while the stages behind compute, its activations live in the waiting coroutine. A peer
that fails below is banned for a while, and another gets the same hidden state.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import logging
import math
import signal
import sys
from collections.abc import AsyncIterator, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, TypeVar

import torch
from torch import Tensor

from trainer.cli.parser import Parser
from trainer.swarm import buffers, reduce, trust, wire
from trainer.swarm.chaos import Chaos
from trainer.swarm.frames import DTYPES, CallFailed, Frame, Malformed, Refused, Unreachable
from trainer.swarm.heap import keep_freed
from trainer.swarm.onward import Onward, not_finite, only
from trainer.swarm.seat import Seat
from trainer.swarm.stage import Passage, StateError, squared_norm
from trainer.swarm.transport import Route, Transport

GIVE_UP = 900.0
"""Seconds without a word from the coordinator after which a worker ends."""
STATE_BYTES = 2**34
"""Most bytes of one tensor of a state."""
T = TypeVar("T")

log = logging.getLogger(__name__)


class Worker:
    def __init__(self, transport: Transport, coordinator: str, hello: wire.Hello, chaos: Chaos, device: str) -> None:
        self.transport, self.chaos, self.device = transport, chaos, device
        self.hello = hello
        address, _, self.coordinator = coordinator.rpartition("/p2p/")
        transport.know(self.coordinator, [address])
        self.lane = ThreadPoolExecutor(1, "lane")
        self.seat: Seat | None = None
        self.members = wire.Members(attempt=0, stages=())
        self.onward: Onward | None = None
        self.slots = asyncio.Semaphore(1)
        self.changed = asyncio.Condition()
        """Notified when a promise or a reduced part is there, or gone."""
        self.reduced: tuple[int, Tensor] | None = None
        self.callers: dict[str, str] = {}
        """Callers that brought what no sound one would, and what."""
        self.over = asyncio.Event()
        self.why = ""

    # --- the loop ---

    async def serve(self) -> None:
        """Be there until the coordinator says that it is over, or is gone for good."""
        boss, peer = self.is_coordinator, self.is_member
        small, hidden = 2**20, self.most_hidden_bytes
        await self.transport.serve(
            {
                "members": Route(self.on_members, boss, small),
                "load": Route(self.on_load, boss, small),
                "where": Route(self.on_where, boss, small),
                "ledger": Route(self.on_ledger, boss, small),
                "drop": Route(self.on_drop, boss, small),
                "prepare": Route(self.on_prepare, boss, small),
                "replayed": Route(self.on_replayed, boss, small),
                "commit": Route(self.on_commit, boss, small),
                "bye": Route(self.on_bye, boss, small),
                "run": Route(self.on_run, self.may_run, hidden),
                "snapshot": Route(self.on_snapshot, peer, small),
                "reduced": Route(self.on_reduced, peer, small),
                "state": Route(self.on_state, self.may_load, small),
            }
        )
        await self.keep_saying_hello()

    async def keep_saying_hello(self) -> None:
        loop, every = asyncio.get_running_loop(), 0.2
        heard = loop.time()
        while not self.over.is_set():
            await self.transport.keep_place()
            try:
                hello = self.hello.model_copy(update={"addresses": self.transport.addresses})
                answer = await self.transport.call(self.coordinator, "hello", wire.written(hello), 10)
                every, heard = await self.welcomed(wire.read(wire.Welcome, answer)), loop.time()
            except Refused as error:
                self.stop(f"The coordinator does not take this machine: {error}")
            except CallFailed as error:
                log.info("no word from the coordinator: %s", error)
                if loop.time() - heard > GIVE_UP:
                    self.stop("The coordinator has not answered for a quarter of an hour.")
            await self.meet_all()
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self.over.wait(), every)

    async def welcomed(self, welcome: wire.Welcome) -> float:
        if self.seat is None:
            self.seat = Seat(welcome.config, self.device)
        if welcome.finished:
            self.stop("The run is finished.")
        elif self.hello.leaving and not welcome.member:
            self.stop("This machine has left the run.")
        return welcome.every

    def leave(self) -> None:
        """Go at the end of the step; asked again, at once."""
        if self.hello.leaving or not self.is_member(self.transport.peer):
            self.stop("Stopped.")
        self.hello = self.hello.model_copy(update={"leaving": True})

    def stop(self, why: str) -> None:
        self.why = self.why or why
        self.over.set()

    async def in_lane(self, work: Callable[..., T], *args: Any) -> T:
        return await asyncio.get_running_loop().run_in_executor(self.lane, work, *args)

    @property
    def seated(self) -> Seat:
        if self.seat is None:
            raise Refused("stale", "I have just come")
        return self.seat

    # --- who may call ---

    def is_coordinator(self, caller: str) -> bool:
        return caller == self.coordinator

    def is_member(self, caller: str) -> bool:
        return any(caller == peer.name for peers in self.members.stages for peer in peers)

    def may_load(self, caller: str) -> bool:
        return self.may_run(caller) or any(caller == peer.name for peer in self.members.joining)

    def may_run(self, caller: str) -> bool:
        return self.is_coordinator(caller) or self.is_member(caller)

    @property
    def most_hidden_bytes(self) -> int:
        return 2**31

    # --- membership ---

    async def on_members(self, _: str, frame: Frame) -> Frame:
        members = wire.read(wire.Members, frame)
        if members.attempt < self.members.attempt:
            raise Refused("stale", "older than what I know")
        self.members = members
        for peers in (*members.stages, members.joining):
            for peer in peers:
                self.transport.know(peer.name, peer.addresses)
        await self.meet_all()
        mine = next(
            (n for n, peers in enumerate(members.stages) if self.transport.peer in {p.name for p in peers}), None
        )
        if mine is not None and mine + 1 < len(members.stages):
            self.onward = self.onward or Onward(self.transport, self.seated.config, mine)
            self.onward.below.now_are([peer.name for peer in members.stages[mine + 1]])
        return wire.written(wire.Done())

    async def meet_all(self) -> None:
        """Where nobody can dial this machine, let it dial everybody: they call over the connections that makes."""
        if not self.transport.dialled:
            others = {p.name for peers in (*self.members.stages, self.members.joining) for p in peers if p.addresses}
            await asyncio.gather(*(self.transport.meet(name) for name in others - {self.transport.peer}))

    async def on_load(self, _: str, frame: Frame) -> Frame:
        ask = wire.read(wire.Load, frame)
        state = await self.fetched(ask) if ask.sources else None
        try:
            stage = await self.in_lane(self.seated.take, ask.attempt, ask.stage, ask.step, state)
        except StateError as error:
            raise Refused("unread", f"{ask.sources[0].name}: {error}") from error
        digest = await self.in_lane(stage.digest)
        slots = await self.in_lane(buffers.room, stage)
        self.slots, self.reduced, self.onward = asyncio.Semaphore(slots), None, None
        log.info("stage %d of %d at step %d", ask.stage, self.seated.config.stages, ask.step)
        parameters = stage.total.numel()
        return wire.written(wire.Loaded(digest=digest, parameters=parameters, slots=slots))

    async def fetched(self, ask: wire.Load) -> dict[str, Tensor]:
        """Read a stage's state from the first source that has it."""
        failed = "nobody"
        for source in ask.sources:
            self.transport.know(source.name, source.addresses)
            state: dict[str, Tensor] = {}
            try:
                body = wire.written(wire.StateOf(stage=ask.stage, step=ask.step))
                async for part in self.transport.stream(source.name, "state", body, 30, STATE_BYTES):
                    (state[wire.read(wire.Named, part).name],) = part.tensors
                return state
            except (CallFailed, ValueError) as error:
                failed = f"{source.name}: {error}"
        raise Refused("unread", failed)

    async def on_state(self, _: str, frame: Frame) -> AsyncIterator[Frame]:
        ask = wire.read(wire.StateOf, frame)
        state = await self.in_lane(self.seated.state, ask.stage, ask.step)
        for name, tensor in state.items():
            yield wire.written(wire.Named(name=name), tensor)

    async def on_bye(self, _: str, frame: Frame) -> Frame:
        self.stop(wire.read(wire.Bye, frame).why)
        return wire.written(wire.Done())

    # --- a micro-batch ---

    async def on_run(self, caller: str, frame: Frame) -> Frame:
        try:
            return await self.passed(wire.read(wire.Run, frame), frame)
        except Malformed as error:
            self.callers[caller] = str(error)[:200]
            raise

    async def passed(self, ask: wire.Run, frame: Frame) -> Frame:
        seat = self.seated
        await self.chaos.at("forward", ask.step)
        async with self.slots:
            stage = seat.at(ask.step)
            tokens, targets, hidden = self.checked(ask, frame.tensors)
            if stage.last and ask.mode != "learn":
                answer = await self.in_lane(seat.answer, ask, tokens, hidden, targets)
                return wire.written(wire.Ran(path=(self.transport.peer,)), answer)
            passage = await self.in_lane(seat.forward, ask, tokens, hidden, targets)
            if stage.last:
                return await self.way_back(
                    ask, passage, None, wire.Ran(path=(), nats=passage.nats, targets=passage.count)
                )
            return await self.through_the_next(ask, passage, targets)

    async def through_the_next(self, ask: wire.Run, passage: Passage, targets: Tensor | None) -> Frame:
        if self.onward is None:
            raise Refused("stale", "I know nobody to pass this on to")
        answer, ran = await self.onward.pass_on(ask, passage, targets)
        if ask.mode == "learn":
            return await self.way_back(ask, passage, answer, ran)
        return wire.written(wire.Ran(path=(self.transport.peer, *ran.path), below=ran.below), answer)

    async def way_back(self, ask: wire.Run, passage: Passage, gradient: Tensor | None, ran: wire.Ran) -> Frame:
        await self.chaos.at("adding", ask.step)
        found = await self.in_lane(self.finished, ask, passage, gradient)
        await self.chaos.at("added", ask.step)
        ran = ran.model_copy(update={"path": (self.transport.peer, *ran.path)})
        return wire.written(ran, *([] if found is None else [found.to(DTYPES[self.seated.config.wire])]))

    def finished(self, ask: wire.Run, passage: Passage, gradient: Tensor | None) -> Tensor | None:
        self.chaos.in_lane("adding", ask.step)
        return self.seated.finish(ask, passage, gradient, self.transport.peer)

    def checked(self, ask: wire.Run, tensors: Sequence[Tensor]) -> tuple[Tensor, Tensor | None, Tensor | None]:
        """Return tokens, targets and hidden state; raise Malformed for anything that is not exactly what may come."""
        stage, config = self.seated.at(ask.step), self.seated.config
        left = list(tensors)
        tokens = left.pop(0) if left else torch.empty(0)
        targets = left.pop(0) if left and ask.mode != "logits" else None
        hidden = left.pop(0) if left and not stage.first else None
        vocabulary = int(config.model["vocabulary_size"])
        for ids in (tokens, targets):
            if ids is not None and not (ids.dtype == torch.int64 and ids.ndim == 2 and ids.shape == tokens.shape):
                raise Malformed("tokens or targets that are not [B, T] int64")
        if not tokens.numel() or tokens.shape[0] > config.micro_batch or tokens.shape[1] > config.sequence_length:
            raise Malformed(f"tokens of shape {list(tokens.shape)}")
        if tokens.min() < 0 or tokens.max() >= vocabulary or (targets is not None and targets.max() >= vocabulary):
            raise Malformed("tokens beyond the vocabulary")
        if left or (targets is None) != (ask.mode == "logits") or (hidden is None) != stage.first:
            raise Malformed("too many tensors, or too few")
        if hidden is not None:
            shape = (*tokens.shape, stage.input_width)
            if hidden.shape != shape or hidden.dtype != DTYPES[config.wire]:
                raise Malformed(
                    f"a hidden state of {hidden.dtype} {list(hidden.shape)}, not {config.wire} {list(shape)}"
                )
            if not_finite(hidden):
                raise Malformed("a hidden state that is not finite")
        return tokens, targets, hidden

    # --- a step's end ---

    async def on_where(self, _: str, frame: Frame) -> Frame:
        ask = wire.read(wire.AskWhere, frame)
        if self.seat is None:
            return wire.written(wire.Where(stage=None, step=0, promised=None))
        return wire.written(await self.in_lane(self.seat.where, ask))

    async def on_ledger(self, _: str, frame: Frame) -> Frame:
        ask = wire.read(wire.Ask, frame)
        ledger = await self.in_lane(self.seated.read, ask)
        await self.tell()
        blamed = {**self.callers, **(self.onward.below.blamed if self.onward else {})}
        found = tuple(wire.Blame(peer=peer, why=why) for peer, why in blamed.items() if self.is_member(peer))
        return wire.written(ledger.model_copy(update={"blamed": found}))

    async def on_drop(self, _: str, frame: Frame) -> Frame:
        ask = wire.read(wire.Drop, frame)
        await self.in_lane(self.seated.drop, ask)
        if ask.doubted and self.onward is not None:
            self.onward.usual = trust.Usual(trust.DOUBTED)
        await self.tell()
        return wire.written(wire.Done())

    async def on_prepare(self, _: str, frame: Frame) -> Frame:
        ask, seat = wire.read(wire.Prepare, frame), self.seated
        await self.in_lane(seat.promise, ask)
        await self.tell()
        await self.chaos.at("promised", ask.step)

        async def publish(total: Tensor) -> None:
            self.reduced = (ask.attempt, total)
            await self.tell()

        async def read(peer: str, which: str, start: int, stop: int) -> Tensor:
            part = wire.Part(attempt=ask.attempt, step=ask.step, start=start, stop=stop, patience=ask.patience)
            return await self.part_of(peer, which, part)

        size, dtype = seat.at(ask.step).total.numel(), DTYPES[seat.config.sums]
        norms: dict[str, float] = {}
        me, count = self.transport.peer, seat.config.micro_batches
        reading = reduce.mean(me, ask.peers, size, count, dtype, read, publish, norms)
        mean, _ = await reduce.together([reading, self.in_lane(seat.weigh, ask)])
        vote = await self.in_lane(seat.vote, ask, mean)
        return wire.written(vote.model_copy(update={"norms": tuple(norms.items())}))

    async def on_replayed(self, _: str, frame: Frame) -> Frame:
        """Say how far a peer's sum is from what this one has computed again."""
        ask, seat = wire.read(wire.Replayed, frame), self.seated
        mine = await self.in_lane(seat.taken_aside, ask.number)
        apart, own = 0.0, 0.0
        for piece in reduce.pieces(range(len(mine))):
            part = wire.Part(
                attempt=ask.attempt, step=ask.step, start=piece.start, stop=piece.stop, patience=ask.patience
            )
            theirs = (await self.part_of(ask.peer, "snapshot", part)).float()
            again = mine[piece.start : piece.stop]
            apart, own = apart + squared_norm(theirs - again), own + squared_norm(again)
        return wire.written(wire.Distance(of=(apart / max(own, 1e-30)) ** 0.5, finite=math.isfinite(own)))

    async def part_of(self, peer: str, which: str, part: wire.Part) -> Tensor:
        """Read a part of a peer's sum, or of this one's own; raise Refused, naming who could not be read."""
        if peer == self.transport.peer:
            return self.own_part(which, part)
        dtype, failed = DTYPES[self.seated.config.sums], CallFailed()
        for _ in range(2):  # connections break where peers live on
            try:
                size = (part.stop - part.start) * dtype.itemsize
                answer = await self.transport.call(peer, which, wire.written(part), part.patience, size)
                return only(answer, (part.stop - part.start,), dtype)
            except Unreachable as error:
                failed = error
            except CallFailed as error:
                failed = error
                break
        raise Refused("unread", f"{peer}: {failed}")

    async def on_snapshot(self, _: str, frame: Frame) -> Frame:
        return await self.wait_for_part("snapshot", frame)

    async def on_reduced(self, _: str, frame: Frame) -> Frame:
        return await self.wait_for_part("reduced", frame)

    async def wait_for_part(self, which: str, frame: Frame) -> Frame:
        """Answer as soon as it is there; others of the stage may have heard of the attempt a little before."""
        part = wire.read(wire.Part, frame)
        if not part.start < part.stop <= part.start + reduce.PIECE:
            raise Malformed(f"parameters {part.start} to {part.stop}")

        def ready() -> bool:
            if self.seated.attempt > part.attempt:
                raise Refused("stale", "there is a newer attempt")
            promised = self.seated.promised == part.attempt
            return promised and (which == "snapshot" or bool(self.reduced and self.reduced[0] == part.attempt))

        try:
            async with asyncio.timeout(part.patience), self.changed:
                await self.changed.wait_for(ready)
        except TimeoutError:
            raise Refused("slow", "not there yet") from None
        return wire.written(wire.Done(), self.own_part(which, part))

    def own_part(self, which: str, part: wire.Part) -> Tensor:
        whole = self.seated.snapshot if which == "snapshot" else self.reduced and self.reduced[1]
        if whole is None or part.stop > len(whole):
            raise Refused("stale", "that is gone")
        return whole[part.start : part.stop].to(DTYPES[self.seated.config.sums])

    async def on_commit(self, _: str, frame: Frame) -> Frame:
        ask = wire.read(wire.Commit, frame)
        await self.chaos.at("committing", ask.step)
        committed = await self.in_lane(self.seated.commit, ask)
        self.reduced = None
        return wire.written(committed)

    async def tell(self) -> None:
        async with self.changed:
            self.changed.notify_all()


# --- the process -----------------------------------------------------------------------------------------------------


async def work(args: argparse.Namespace) -> str:
    """Join, stay until it is over, and return why it is."""
    transport = Transport(args.folder)
    host, _, port = args.listen.rpartition(":")
    await transport.start(
        host, int(port), args.announce, listen=not args.no_listen, relays=args.relay, serves_as_relay=False
    )
    hello = wire.Hello(run=args.run, label=args.label, credential=args.credential, wish=args.wish)
    worker = Worker(transport, args.coordinator, hello, Chaos.of(args.faults), args.device)
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, worker.leave)
    try:
        await worker.serve()
    finally:
        await transport.close()
        worker.lane.shutdown(cancel_futures=True)
    return worker.why


def parser() -> Parser:
    flags = Parser(prog="python -m trainer.swarm.worker", description="Compute a stage of a swarm's model.")
    flags.add_argument("--coordinator", required=True, help="its address: /ip4/.../tcp/.../p2p/...")
    flags.add_argument("--folder", required=True, type=Path, help="this worker's own: its key")
    flags.add_argument("--run", default="", help="name of the run")
    flags.add_argument("--label", default="", help="what you call this machine")
    flags.add_argument("--credential", default="", help="what the run's owner gave you")
    flags.add_argument("--wish", type=int, help="stage to join, if that is all the same to others")
    flags.add_argument("--device", default="cpu")
    flags.add_argument("--listen", default="127.0.0.1:0", help="host:port that other peers can reach")
    flags.add_argument("--announce", action="append", default=[], help="address that others should use instead")
    flags.add_argument("--no-listen", action="store_true", help="nobody can dial this machine")
    flags.add_argument("--relay", action="append", default=[], help="address of a peer that passes connections on")
    flags.add_argument("--faults", help=argparse.SUPPRESS)
    return flags


def main(argv: Sequence[str] | None = None) -> int:
    args = parser().parse_args(argv)
    logging.basicConfig(format="%(asctime)s %(message)s", level=logging.INFO)
    keep_freed()
    try:
        print(asyncio.run(work(args)))  # noqa: T201
    except (ValueError, OSError, Unreachable) as error:
        print(error, file=sys.stderr)  # noqa: T201
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
