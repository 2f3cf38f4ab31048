"""How the peers of a stage add up their sums: into a tensor of their own, in one order, so that all get the same bits.

Up to four peers each read everybody's sum (all-gather). More share the work: each adds up one part of the parameters
for all, and reads the other parts from those who did (as in a butterfly all-reduce: 2 (n - 1) / n of the sum travels
into each peer instead of n - 1 of it). Either way each number is added in the sorted order of the peers, and the
result is the same to the last bit.

Nothing is changed in place. If a peer dies on the way this fails, and the sums are all still there.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import Any

import torch
from torch import Tensor

from trainer.swarm.seat import summed
from trainer.swarm.stage import squared_norm

MOST_GATHERED = 4
"""Peers up to which everybody reads everything."""
PIECE = 2**20
"""Parameters in one call: 4 MiB."""
AT_ONCE = 4
"""Pieces that are on their way at the same time."""

Read = Callable[[str, str, int, int], Awaitable[Tensor]]
"""(peer, "snapshot" or "reduced", start, stop) -> that part of the peer's tensor; may be asked of oneself."""


def parts(size: int, peers: int) -> list[range]:
    """Cut `size` parameters evenly among so many peers."""
    bounds = [size * number // peers for number in range(peers + 1)]
    return [range(start, stop) for start, stop in itertools.pairwise(bounds)]


def pieces(part: range) -> list[range]:
    return [range(start, min(start + PIECE, part.stop)) for start in range(part.start, part.stop, PIECE)]


async def mean(
    me: str,
    peers: Sequence[str],
    size: int,
    micro_batches: int,
    dtype: torch.dtype,
    read: Read,
    publish: Callable[[Tensor], Awaitable[None]],
    norms: dict[str, float] | None = None,
) -> Tensor:
    """Return the mean gradient `[size]` of a stage, fp32: the sum over all peers, times one over the micro-batches.

    `publish` gets this peer's own part, for the others to read, when there are more than four. `norms` gets the
    squared norm of what was read of each peer's sum.
    """
    gate, total = asyncio.Semaphore(AT_ONCE), torch.empty(size)

    async def add_up(piece: range) -> None:
        async with gate:
            found = await together(read(peer, "snapshot", piece.start, piece.stop) for peer in peers)
            for peer, part in zip(peers, found, strict=True):
                if norms is not None:
                    norms[peer] = norms.get(peer, 0.0) + squared_norm(part.float())
            torch.mul(summed(found), 1 / micro_batches, out=total[piece.start : piece.stop])

    async def take_over(owner: str, piece: range) -> None:
        async with gate:
            total[piece.start : piece.stop] = await read(owner, "reduced", piece.start, piece.stop)

    if len(peers) <= MOST_GATHERED:
        await together(add_up(piece) for piece in pieces(range(size)))
        return total
    shares = dict(zip(peers, parts(size, len(peers)), strict=True))
    mine = shares[me]
    await together(add_up(piece) for piece in pieces(mine))
    total[mine.start : mine.stop] = total[mine.start : mine.stop].to(dtype)  # as the others will read it
    await publish(total)
    others = [(owner, piece) for owner, share in shares.items() if owner != me for piece in pieces(share)]
    await together(take_over(owner, piece) for owner, piece in others)
    return total


async def together(waiting: Iterable[Awaitable[Any]]) -> list[Any]:
    """Wait for all; if one fails end the others, and raise what it raised."""
    tasks = [asyncio.ensure_future(one) for one in waiting]
    try:
        return await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
