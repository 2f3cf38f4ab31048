"""A worker: one peer of a swarm. It computes a stage for any caller, and calls the next stage for it.

asyncio handles everything that waits; one compute thread handles everything that touches the stage. A micro-batch's way
through the stages is a nested call: while later stages compute, its activations live in the waiting coroutine. If a
peer of the next stage fails it is banned for a while, and another peer gets the same hidden state.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

import torch
from torch import Tensor

from trainer.protocol import Message
from trainer.protocol.version import MessageT
from trainer.swarm import messages, trust
from trainer.swarm.fault_injection import FaultInjector
from trainer.swarm.frames import (
    CallError,
    CallRefusedError,
    MalformedFrameError,
    RpcFrame,
    decode_tensor,
    encode_tensor,
)
from trainer.swarm.next_stage_client import NextStageClient, describe_non_finite
from trainer.swarm.stage import ForwardRecord, Stage, StateError
from trainer.swarm.stage_client import MAX_HIDDEN_BYTES, fetch_state, send_state
from trainer.swarm.sum_exchange import SumExchange
from trainer.swarm.transport import Handler, Route, Transport, get_loop_time
from trainer.swarm.worker_state import WorkerState

GIVE_UP_SECONDS = 900.0  # A worker stops if the coordinator does not reply for this long
MAX_MESSAGE_BYTES = 2**20
T = TypeVar("T")

log = logging.getLogger(__name__)


class Worker:
    exchange_type = SumExchange
    state_type = WorkerState
    next_stage_type = NextStageClient

    def __init__(
        self,
        transport: Transport,
        coordinator: Sequence[str],
        hello: messages.Hello,
        faults: FaultInjector,
        device: str,
    ) -> None:
        """`coordinator`: its addresses, which end with its name."""
        self.transport, self.hello, self.faults, self.device = transport, hello, faults, device
        self.coordinator = coordinator[0].rpartition("/p2p/")[2]
        transport.add_addresses(self.coordinator, coordinator)
        self.executor = ThreadPoolExecutor(1, "compute")
        self.state: WorkerState | None = None
        self.exchange: SumExchange | None = None
        self.members = messages.Members(attempt=0, stages=())
        self.next_stage: NextStageClient | None = None
        self.slots = asyncio.Semaphore(1)
        self.blamed_callers: dict[str, str] = {}  # Callers whose request was invalid, and why
        self.stopped = asyncio.Event()
        self.reason = ""

    # --- the loop ---

    async def serve(self) -> None:
        """Serve until the coordinator ends the run or is gone for good."""
        handlers = {
            "members": build_handler(messages.Members, self.on_members),
            "load": build_handler(messages.Load, self.on_load),
            "position": build_handler(messages.PositionRequest, self.on_position),
            "ledger": build_handler(messages.StepRequest, self.on_ledger),
            "drop": build_handler(messages.DropStep, self.on_drop),
            "prepare": build_handler(messages.Prepare, self.on_prepare),
            "compare_replay": build_handler(messages.CompareReplay, lambda m: self.get_exchange().compare_replay(m)),
            "commit": build_handler(messages.Commit, self.on_commit),
            "shutdown": build_handler(messages.Shutdown, self.on_shutdown),
        }
        routes = {name: Route(h, self.is_coordinator, MAX_MESSAGE_BYTES) for name, h in handlers.items()}
        routes["run"] = Route(self.on_run, self.may_run, MAX_HIDDEN_BYTES)
        routes["state"] = Route(self.on_state, self.may_load, MAX_MESSAGE_BYTES)
        routes["snapshot"] = Route(self.serve_sum, self.is_member, MAX_MESSAGE_BYTES)
        await self.transport.serve(routes)
        await self.send_hellos()

    async def send_hellos(self) -> None:
        interval, last_reply = 0.2, get_loop_time()
        while not self.stopped.is_set():
            await self.transport.renew_relay_reservations()
            try:
                hello = self.hello.model_copy(update={"addresses": self.transport.addresses})
                reply = await self.transport.call(self.coordinator, "hello", messages.to_frame(hello), 10)
                interval = self.handle_welcome(messages.parse_message(messages.Welcome, reply))
                last_reply = get_loop_time()
            except CallRefusedError as error:
                self.stop(f"The coordinator does not accept this machine: {error}")
            except CallError as error:
                log.info("no reply from the coordinator: %s", error)
                if get_loop_time() - last_reply > GIVE_UP_SECONDS:
                    self.stop(f"The coordinator has not replied for {GIVE_UP_SECONDS / 60:.0f} minutes.")
            await self.connect_to_all()
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self.stopped.wait(), interval)

    def handle_welcome(self, welcome: messages.Welcome) -> float:
        """Return the seconds until the next hello."""
        if self.state is None:
            self.state = self.state_type(welcome.config, self.device)
            self.exchange = self.exchange_type(self.transport, self.state, self.run_in_thread)
        if welcome.finished:
            self.stop("The run is finished.")
        elif self.hello.leaving and not welcome.member:
            self.stop("This machine has left the run.")
        return welcome.every

    def leave(self) -> None:
        """Leave at the end of the step; at the second call, at once."""
        if self.hello.leaving or not self.is_member(self.transport.peer):
            self.stop("Stopped.")
        self.hello = self.hello.model_copy(update={"leaving": True})

    def stop(self, reason: str) -> None:
        self.reason = self.reason or reason
        self.stopped.set()

    async def run_in_thread(self, function: Callable[..., T], *args: Any) -> T:
        return await asyncio.get_running_loop().run_in_executor(self.executor, function, *args)

    def get_state(self) -> WorkerState:
        return self.get_exchange().state

    def get_exchange(self) -> SumExchange:
        if self.exchange is None:
            raise CallRefusedError("stale", "this worker has not been welcomed yet")
        return self.exchange

    # --- permissions ---

    def is_coordinator(self, caller: str) -> bool:
        return caller == self.coordinator

    def is_member(self, caller: str) -> bool:
        return any(caller == peer.name for peers in self.members.stages for peer in peers)

    def may_run(self, caller: str) -> bool:
        return self.is_coordinator(caller) or self.is_member(caller)

    def may_load(self, caller: str) -> bool:
        return self.may_run(caller) or any(caller == peer.name for peer in self.members.joining)

    # --- membership ---

    async def on_members(self, members: messages.Members) -> None:
        if members.attempt < self.members.attempt:
            raise CallRefusedError("stale", "this worker has a newer list of members")
        self.members = members
        for peers in (*members.stages, members.joining):
            for peer in peers:
                self.transport.add_addresses(peer.name, peer.addresses)
        await self.connect_to_all()
        names = [[peer.name for peer in peers] for peers in members.stages]
        index = next((number for number, peers in enumerate(names) if self.transport.peer in peers), None)
        if index is not None and index + 1 < len(names):
            self.next_stage = self.next_stage or self.next_stage_type(self.transport, self.get_state().config, index)
            self.next_stage.client.set_peers(names[index + 1])

    async def connect_to_all(self) -> None:
        """If this machine cannot be dialed, dial all peers: they call back over these connections."""
        if not self.transport.is_dialable:
            others = {p.name for peers in (*self.members.stages, self.members.joining) for p in peers if p.addresses}
            await asyncio.gather(*(self.transport.connect_to(name) for name in others - {self.transport.peer}))

    async def on_load(self, order: messages.Load) -> messages.Loaded:
        worker = self.get_state()
        request = messages.StateRequest(stage=order.stage, step=order.step)
        state = await self.fetch_first_state(order.sources, request) if order.sources else None
        try:
            stage = await self.run_in_thread(worker.load_stage, order.attempt, order.stage, order.step, state)
        except StateError as error:
            raise CallRefusedError("unreadable", f"{order.sources[0].name}: {error}") from error
        slots = await self.run_in_thread(worker.plan_memory)
        self.slots, self.next_stage = asyncio.Semaphore(slots), None
        log.info("stage %d of %d at step %d", order.stage, worker.config.stages, order.step)
        return messages.Loaded(parameters=stage.gradient_sum.numel(), slots=slots)

    async def fetch_first_state(
        self, sources: Sequence[messages.Peer], request: messages.StateRequest
    ) -> dict[str, Tensor]:
        """Read a stage's state from the first source that sends it."""
        failure = "no sources"
        for source in sources:
            self.transport.add_addresses(source.name, source.addresses)
            try:
                return await fetch_state(self.transport, source.name, request, 30)
            except (CallError, ValueError) as error:
                failure = f"{source.name}: {error}"
        raise CallRefusedError("unreadable", failure)

    async def on_state(self, _: str, frame: RpcFrame) -> AsyncIterator[RpcFrame]:
        request = messages.parse_message(messages.StateRequest, frame)
        state = await self.run_in_thread(self.get_state().copy_state, request)
        async for part in send_state(state):
            yield part

    async def on_shutdown(self, order: messages.Shutdown) -> None:
        self.stop(order.why)

    # --- a micro-batch ---

    async def on_run(self, caller: str, frame: RpcFrame) -> RpcFrame:
        try:
            return await self.run_micro_batch(messages.parse_message(messages.RunRequest, frame), frame)
        except MalformedFrameError as error:
            self.blamed_callers[caller] = str(error)[:200]
            raise

    async def run_micro_batch(self, request: messages.RunRequest, frame: RpcFrame) -> RpcFrame:
        state = self.get_state()
        await self.faults.trigger("forward", request.step)
        async with self.slots:
            stage = state.get_stage(request.step)
            tokens, targets, hidden = check_inputs(stage, request, frame.tensors)
            if request.cache is not None:
                return await self.advance_text(request, request.cache, tokens, hidden)
            if stage.is_last and request.mode == "nats":
                reply = await self.run_in_thread(state.compute_nats, request, tokens, hidden, targets)
                return messages.to_frame(messages.StageReply(path=(self.transport.peer,)), reply)
            record = await self.run_in_thread(state.run_forward, request, tokens, hidden, targets)
            if stage.is_last:
                result = messages.StageReply(path=(), nats=record.nats, targets=record.count)
                return await self.backward(request, record, None, result)
            return await self.run_next_stages(request, record, targets)

    async def advance_text(
        self, request: messages.RunRequest, position: messages.CachePosition, tokens: Tensor, hidden: Tensor | None
    ) -> RpcFrame:
        """Read the next tokens of a text that is being sampled; reply with the next token's logits."""
        state = self.get_state()
        output = await self.run_in_thread(state.advance, request, position, tokens, hidden)
        if state.get_stage(request.step).is_last:
            return messages.to_frame(messages.StageReply(path=(self.transport.peer,)), output)
        return await self.run_next_stages(request, ForwardRecord(tokens, None, None, output, None), None)

    async def run_next_stages(
        self, request: messages.RunRequest, record: ForwardRecord, targets: Tensor | None
    ) -> RpcFrame:
        if self.next_stage is None:
            raise CallRefusedError("stale", "this worker does not know the next stage yet")
        reply, result = await self.next_stage.run_micro_batch(request, record, targets)
        if request.mode == "learn":
            return await self.backward(request, record, reply, result)
        path = (self.transport.peer, *result.path)
        return messages.to_frame(messages.StageReply(path=path, later_seconds=result.later_seconds), reply)

    async def backward(
        self, request: messages.RunRequest, record: ForwardRecord, gradient: Tensor | None, result: messages.StageReply
    ) -> RpcFrame:
        state = self.get_state()

        def run_backward() -> Tensor | None:
            self.faults.trigger_stall("adding", request.step)
            return state.run_backward(request, record, gradient, self.transport.peer)

        await self.faults.trigger("adding", request.step)
        input_gradient = await self.run_in_thread(run_backward)
        await self.faults.trigger("added", request.step)
        result = result.model_copy(update={"path": (self.transport.peer, *result.path)})
        tensors = () if input_gradient is None else encode_tensor(input_gradient, state.config.wire)
        return messages.to_frame(result, *tensors)

    # --- the end of a step ---

    async def on_position(self, request: messages.PositionRequest) -> messages.Position:
        if self.state is None:
            return messages.Position(stage=None, step=0, frozen_attempt=None)
        return await self.run_in_thread(self.state.get_position, request)

    async def on_ledger(self, request: messages.StepRequest) -> messages.Ledger:
        ledger = await self.run_in_thread(self.get_state().read_ledger, request)
        await self.get_exchange().notify()
        blamed = self.blamed_callers | (self.next_stage.client.blamed if self.next_stage else {})
        blames = tuple(messages.Blame(peer=peer, why=why) for peer, why in blamed.items() if self.is_member(peer))
        return ledger.model_copy(update={"blamed": blames})

    async def on_drop(self, order: messages.DropStep) -> None:
        await self.run_in_thread(self.get_state().drop_step, order)
        if order.first_strike and self.next_stage is not None:
            self.next_stage.gradient_norms = trust.GradientNormTracker(trust.STRIKE_WARMUP_GRADIENTS)
        await self.get_exchange().notify()

    async def on_prepare(self, request: messages.Prepare) -> messages.Vote:
        exchange = self.get_exchange()
        await self.run_in_thread(self.get_state().freeze, request)
        await exchange.notify()
        await self.faults.trigger("frozen", request.step)
        return await exchange.vote(request)

    async def serve_sum(self, caller: str, frame: RpcFrame) -> RpcFrame:
        return await self.get_exchange().serve_part(caller, frame)

    async def on_commit(self, order: messages.Commit) -> messages.Committed:
        await self.faults.trigger("committing", order.step)
        return await self.run_in_thread(self.get_state().commit, order)


def build_handler(kind: type[MessageT], function: Callable[[MessageT], Awaitable[Message | None]]) -> Handler:
    """Return a handler that parses the request for `function` and encodes its reply; None is an acknowledgement."""

    async def handle(_: str, frame: RpcFrame) -> RpcFrame:
        return messages.to_frame(await function(messages.parse_message(kind, frame)) or messages.Acknowledgement())

    return handle


def check_inputs(
    stage: Stage, request: messages.RunRequest, tensors: Sequence[Tensor]
) -> tuple[Tensor, Tensor | None, Tensor | None]:
    """Return tokens, targets and hidden state; raise `MalformedFrameError` for unexpected tensors."""
    remaining = list(tensors)
    tokens = remaining.pop(0) if remaining else torch.empty(0)
    targets = remaining.pop(0) if remaining and request.mode != "logits" else None
    check_tokens(stage, tokens, targets)
    if (targets is None) != (request.mode == "logits") or bool(remaining) == stage.is_first:
        raise MalformedFrameError("too many or too few tensors")
    if request.cache is not None and len(tokens) != 1:
        raise MalformedFrameError("a text is one row")
    start = request.cache.start if request.cache else 0
    if (request.cache is None) != (request.mode != "logits") or start + tokens.shape[1] > stage.config.sequence_length:
        raise MalformedFrameError("a cache is for logits, and a text as long as a row at most")
    return tokens, targets, None if stage.is_first else decode_hidden(stage, tokens, remaining)


def check_tokens(stage: Stage, tokens: Tensor, targets: Tensor | None) -> None:
    config = stage.config
    vocabulary = int(config.model["vocabulary_size"])
    for ids in (tokens, targets):
        if ids is not None and not (ids.dtype == torch.int64 and ids.ndim == 2 and ids.shape == tokens.shape):
            raise MalformedFrameError("tokens or targets that are not [B, T] int64")
    if not tokens.numel() or tokens.shape[0] > config.micro_batch or tokens.shape[1] > config.sequence_length:
        raise MalformedFrameError(f"tokens of shape {list(tokens.shape)}")
    if tokens.min() < 0 or tokens.max() >= vocabulary or (targets is not None and targets.max() >= vocabulary):
        raise MalformedFrameError("tokens beyond the vocabulary")


def decode_hidden(stage: Stage, tokens: Tensor, tensors: Sequence[Tensor]) -> Tensor:
    hidden = decode_tensor(tensors, stage.config.wire, (*tokens.shape, stage.input_width))
    if describe_non_finite(hidden):
        raise MalformedFrameError("a hidden state that is not finite")
    return hidden
