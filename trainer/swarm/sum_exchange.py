"""A worker's exchange of gradient sums with the peers of its stage: the reduction, and the comparison of replays."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any

from torch import Tensor

from trainer.swarm import messages, reduce
from trainer.swarm.frames import (
    DTYPES,
    CallError,
    CallRefusedError,
    MalformedFrameError,
    PeerUnreachableError,
    RpcFrame,
)
from trainer.swarm.next_stage_client import get_single_tensor
from trainer.swarm.stage import squared_norm
from trainer.swarm.transport import Transport
from trainer.swarm.worker_state import WorkerState

RunInThread = Callable[..., Awaitable[Any]]  # Runs a function in the worker's compute thread


class SumExchange:
    def __init__(self, transport: Transport, state: WorkerState, run_in_thread: RunInThread) -> None:
        self.transport, self.state, self.run_in_thread = transport, state, run_in_thread
        self.changed = asyncio.Condition()
        """Notified when the worker has frozen or unfrozen, or a reduced part is available."""
        self.published: dict[str, tuple[int, Tensor]] = {}
        """The attempt and a tensor. "reduced": `[P]` with this worker's part of the mean gradient."""

    async def notify(self) -> None:
        async with self.changed:
            self.changed.notify_all()

    async def publish(self, which: str, attempt: int, tensor: Tensor) -> None:
        self.published[which] = (attempt, tensor)
        await self.notify()

    async def vote(self, request: messages.Prepare) -> messages.Vote:
        """Reduce the stage's gradient sums, and vote on the result."""

        async def read_chunk(peer: str, which: str, chunk: range) -> Tensor:
            return await self.read_part(peer, which, request, chunk)

        state, norms = self.state, dict[str, float]()
        size, dtype = state.get_stage(request.step).gradient_sum.numel(), DTYPES[state.config.sums]
        count = state.config.micro_batches
        publish = partial(self.publish, "reduced", request.attempt)
        reduction = reduce.all_reduce_mean(
            self.transport.peer, request.peers, size, count, dtype, read_chunk, publish, norms
        )
        hashing = self.run_in_thread(state.hash_weights, request)
        mean, _ = await reduce.gather_or_cancel([reduction, hashing])
        vote = await self.run_in_thread(state.vote, request, mean)
        return vote.model_copy(update={"norms": tuple(norms.items())})

    async def compare_replay(self, request: messages.CompareReplay) -> messages.ReplayDistance:
        """Return the distance of a peer's gradient sum from the one that this worker recomputed."""
        replayed = await self.run_in_thread(self.state.take_replay, request.number)
        distance, norm = 0.0, 0.0
        for chunk in reduce.split_chunks(range(len(replayed))):
            peer_sum = (await self.read_part(request.peer, "snapshot", request, chunk)).float()
            own_sum = replayed[chunk.start : chunk.stop]
            distance, norm = distance + squared_norm(peer_sum - own_sum), norm + squared_norm(own_sum)
        relative = (distance / max(norm, 1e-30)) ** 0.5
        return messages.ReplayDistance(relative=relative, finite=math.isfinite(norm))

    async def read_part(
        self, peer: str, which: str, request: messages.Prepare | messages.CompareReplay, chunk: range
    ) -> Tensor:
        """Read a chunk of a peer's sum or of this worker's own. Raise `CallRefusedError` with the peer's name."""
        fields = request.model_dump(include={"attempt", "step", "timeout"})
        part = messages.SumPart(start=chunk.start, stop=chunk.stop, **fields)
        if peer == self.transport.peer:
            return self.get_own_part(which, part)
        dtype, size = DTYPES[self.state.config.sums], len(chunk)
        failure = CallError()
        for _ in range(2):  # a connection may break while the peer is alive
            try:
                frame = messages.to_frame(part)
                reply = await self.transport.call(peer, which, frame, part.timeout, size * dtype.itemsize)
                return get_single_tensor(reply, (size,), dtype)
            except PeerUnreachableError as error:
                failure = error
            except CallError as error:
                failure = error
                break
        raise CallRefusedError("unreadable", f"{peer}: {failure}")

    async def serve_part(self, which: str, frame: RpcFrame) -> RpcFrame:
        """Answer as soon as the part is available: peers of the stage may have received the attempt earlier."""
        part = messages.parse_message(messages.SumPart, frame)
        if not part.start < part.stop <= part.start + reduce.CHUNK_PARAMETERS:
            raise MalformedFrameError(f"parameters {part.start} to {part.stop}")

        def is_ready() -> bool:
            if self.state.attempt > part.attempt:
                raise CallRefusedError("stale", "there is a newer attempt")
            is_frozen = self.state.frozen_attempt == part.attempt
            return is_frozen and (which == "snapshot" or self.published.get(which, (0,))[0] == part.attempt)

        try:
            async with asyncio.timeout(part.timeout), self.changed:
                await self.changed.wait_for(is_ready)
        except TimeoutError:
            raise CallRefusedError("slow", "the sum is not available yet") from None
        return messages.to_frame(messages.Acknowledgement(), self.get_own_part(which, part))

    def get_own_part(self, which: str, part: messages.SumPart) -> Tensor:
        whole = self.state.snapshot if which == "snapshot" else self.published.get(which, (0, None))[1]
        if whole is None or part.stop > len(whole):
            raise CallRefusedError("stale", "the sum is no longer available")
        return whole[part.start : part.stop].to(DTYPES[self.state.config.sums])
