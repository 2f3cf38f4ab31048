"""The exchange of gradient sums between the peers of a stage: the reduction, and the comparison of replays.

Each peer reads all sums and adds them in the sorted order of the peers, into a new tensor, so all get the same bits.
Nothing is changed in place. If a peer dies during a reduction it fails, and all sums are intact.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import Any

import torch
from torch import Tensor

from trainer.swarm import messages
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

CHUNK_PARAMETERS = 2**20  # Parameters per call: 4 MiB in fp32
MAX_CONCURRENT_READS = 4  # Chunks read at the same time

ReadPart = Callable[[str, range], Awaitable[Tensor]]  # (peer, chunk) -> that part of its sum. It may be this one's.
RunInThread = Callable[..., Awaitable[Any]]  # Runs a function in the worker's compute thread


class SumExchange:
    def __init__(self, transport: Transport, state: WorkerState, run_in_thread: RunInThread) -> None:
        self.transport, self.state, self.run_in_thread = transport, state, run_in_thread
        self.changed = asyncio.Condition()
        """Notified when the worker has frozen or unfrozen."""

    async def notify(self) -> None:
        async with self.changed:
            self.changed.notify_all()

    async def vote(self, request: messages.Prepare) -> messages.Vote:
        """Reduce the stage's gradient sums, and vote on the result."""

        async def read_chunk(peer: str, chunk: range) -> Tensor:
            return await self.read_part(peer, request, chunk)

        state, norms = self.state, dict[str, float]()
        size, count = state.get_stage(request.step).gradient_sum.numel(), state.config.micro_batches
        reduction = reduce_mean(request.peers, size, count, read_chunk, norms)
        hashing = self.run_in_thread(state.hash_weights, request)
        mean, _ = await gather_or_cancel([reduction, hashing])
        vote = await self.run_in_thread(state.vote, request, mean)
        return vote.model_copy(update={"norms": tuple(norms.items())})

    async def compare_replay(self, request: messages.CompareReplay) -> messages.ReplayDistance:
        """Return the distance of a peer's gradient sum from the one that this worker recomputed."""
        replayed = await self.run_in_thread(self.state.take_replay, request.number)
        distance, norm = 0.0, 0.0
        for chunk in split_chunks(range(len(replayed))):
            peer_sum = (await self.read_part(request.peer, request, chunk)).float()
            own_sum = replayed[chunk.start : chunk.stop]
            distance, norm = distance + squared_norm(peer_sum - own_sum), norm + squared_norm(own_sum)
        relative = (distance / max(norm, 1e-30)) ** 0.5
        return messages.ReplayDistance(relative=relative, finite=math.isfinite(norm))

    async def read_part(self, peer: str, request: messages.Prepare | messages.CompareReplay, chunk: range) -> Tensor:
        """Read a chunk of a peer's sum or of this worker's own. Raise `CallRefusedError` with the peer's name."""
        fields = request.model_dump(include={"attempt", "step", "timeout"})
        part = messages.SumPart(start=chunk.start, stop=chunk.stop, **fields)
        if peer == self.transport.peer:
            return self.get_own_part(part)
        dtype, size = DTYPES[self.state.config.sums], len(chunk)
        failure = CallError()
        for _ in range(2):  # a connection may break while the peer is alive
            try:
                frame = messages.to_frame(part)
                reply = await self.transport.call(peer, "snapshot", frame, part.timeout, size * dtype.itemsize)
                return get_single_tensor(reply, (size,), dtype)
            except PeerUnreachableError as error:
                failure = error
            except CallError as error:
                failure = error
                break
        raise CallRefusedError("unreadable", f"{peer}: {failure}")

    async def serve_part(self, _: str, frame: RpcFrame) -> RpcFrame:
        """Answer as soon as the part is available: peers of the stage may have received the attempt earlier."""
        part = messages.parse_message(messages.SumPart, frame)
        if not part.start < part.stop <= part.start + CHUNK_PARAMETERS:
            raise MalformedFrameError(f"parameters {part.start} to {part.stop}")

        def is_ready() -> bool:
            if self.state.attempt > part.attempt:
                raise CallRefusedError("stale", "there is a newer attempt")
            return self.state.frozen_attempt == part.attempt

        try:
            async with asyncio.timeout(part.timeout), self.changed:
                await self.changed.wait_for(is_ready)
        except TimeoutError:
            raise CallRefusedError("slow", "the sum is not available yet") from None
        return messages.to_frame(messages.Acknowledgement(), self.get_own_part(part))

    def get_own_part(self, part: messages.SumPart) -> Tensor:
        whole = self.state.snapshot
        if whole is None or part.stop > len(whole):
            raise CallRefusedError("stale", "the sum is no longer available")
        return whole[part.start : part.stop].to(DTYPES[self.state.config.sums])


def split_chunks(part: range) -> list[range]:
    return [
        range(start, min(start + CHUNK_PARAMETERS, part.stop))
        for start in range(part.start, part.stop, CHUNK_PARAMETERS)
    ]


async def reduce_mean(
    peers: Sequence[str], size: int, micro_batches: int, read: ReadPart, norms: dict[str, float]
) -> Tensor:
    """Return the mean gradient `[size]` of a stage, fp32: the sum over all peers divided by the micro-batches.

    `norms` receives the squared norm of each peer's sum.
    """
    semaphore, total = asyncio.Semaphore(MAX_CONCURRENT_READS), torch.empty(size)

    async def reduce_chunk(chunk: range) -> None:
        async with semaphore:
            parts = await gather_or_cancel(read(peer, chunk) for peer in peers)
            for peer, part in zip(peers, parts, strict=True):
                norms[peer] = norms.get(peer, 0.0) + squared_norm(part.float())
            torch.mul(sum_in_order(parts), 1 / micro_batches, out=total[chunk.start : chunk.stop])

    await gather_or_cancel(reduce_chunk(chunk) for chunk in split_chunks(range(size)))
    return total


def sum_in_order(parts: Sequence[Tensor]) -> Tensor:
    """Add tensors in fp32 in this order: the same order gives the same bits."""
    total = parts[0].float() if parts[0].dtype != torch.float32 else parts[0].clone()
    for part in parts[1:]:
        total.add_(part)
    return total


async def gather_or_cancel(awaitables: Iterable[Awaitable[Any]]) -> list[Any]:
    """Wait for all; if one fails, cancel the others and raise its error."""
    tasks = [asyncio.ensure_future(awaitable) for awaitable in awaitables]
    try:
        return await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
