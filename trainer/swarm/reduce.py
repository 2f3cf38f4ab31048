"""Reduction of a stage's gradient sums, into a new tensor and in one fixed order, so that all peers get the same bits.

Up to four peers each read all sums (all-gather). More peers share the work: each reduces one part of the parameters and
reads the other parts from the peers that reduced them (butterfly all-reduce: 2 (n - 1) / n of the sum travels into each
peer instead of n - 1 times the sum). In both cases the sums are added in the sorted order of the peers.

Nothing is changed in place. If a peer dies during a reduction it fails, and all sums are intact.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import Any

import torch
from torch import Tensor

from trainer.swarm.stage import squared_norm
from trainer.swarm.worker_state import sum_in_order

MAX_GATHER_PEERS = 4  # Largest number of peers for all-gather
CHUNK_PARAMETERS = 2**20  # Parameters per call: 4 MiB in fp32
MAX_CONCURRENT_READS = 4  # Chunks read at the same time

ReadPart = Callable[[str, str, range], Awaitable[Tensor]]
"""(peer, "snapshot" or "reduced", chunk) -> that part of the peer's tensor. The peer may be this one."""


def split_evenly(size: int, peers: int) -> list[range]:
    """Split `size` parameters evenly among the peers."""
    bounds = [size * number // peers for number in range(peers + 1)]
    return [range(start, stop) for start, stop in itertools.pairwise(bounds)]


def split_chunks(part: range) -> list[range]:
    return [
        range(start, min(start + CHUNK_PARAMETERS, part.stop))
        for start in range(part.start, part.stop, CHUNK_PARAMETERS)
    ]


async def all_reduce_mean(
    this_peer: str,
    peers: Sequence[str],
    size: int,
    micro_batches: int,
    dtype: torch.dtype,
    read: ReadPart,
    publish: Callable[[Tensor], Awaitable[None]],
    norms: dict[str, float] | None = None,
) -> Tensor:
    """Return the mean gradient `[size]` of a stage, fp32: the sum over all peers divided by the micro-batches.

    With more than four peers, `publish` receives this peer's reduced part for the others to read. `norms` receives the
    squared norm of the part of each peer's sum that was read.
    """
    semaphore, total = asyncio.Semaphore(MAX_CONCURRENT_READS), torch.empty(size)

    async def reduce_chunk(chunk: range) -> None:
        async with semaphore:
            parts = await gather_or_cancel(read(peer, "snapshot", chunk) for peer in peers)
            for peer, part in zip(peers, parts, strict=True):
                if norms is not None:
                    norms[peer] = norms.get(peer, 0.0) + squared_norm(part.float())
            torch.mul(sum_in_order(parts), 1 / micro_batches, out=total[chunk.start : chunk.stop])

    async def copy_chunk(owner: str, chunk: range) -> None:
        async with semaphore:
            total[chunk.start : chunk.stop] = await read(owner, "reduced", chunk)

    if len(peers) <= MAX_GATHER_PEERS:
        await gather_or_cancel(reduce_chunk(chunk) for chunk in split_chunks(range(size)))
        return total
    shares = dict(zip(peers, split_evenly(size, len(peers)), strict=True))
    await gather_or_cancel(reduce_chunk(chunk) for chunk in split_chunks(shares[this_peer]))
    reduced = total[shares[this_peer].start : shares[this_peer].stop]
    reduced.copy_(reduced.to(dtype))  # the others read it in this dtype
    await publish(total)
    others = [(owner, chunk) for owner, share in shares.items() if owner != this_peer for chunk in split_chunks(share)]
    await gather_or_cancel(copy_chunk(owner, chunk) for owner, chunk in others)
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
