"""A head that is tied to the embedding: the first and the last stage have a copy of one matrix, and one gradient.

Each stage reduces its peers' gradient sums as always. Then each peer of the two ends reads the matrix's part of the
mean from one peer of the other end, and adds it to its own. A sum of two numbers doesn't depend on their order, so all
peers of both ends have the same bits, make the same update, and keep equal copies and momenta.

Before the commit the coordinator compares the digests of `messages.TiedDigests`: all peers of an end must have the same
mean and weights, and all peers of the other end must have read that mean and have those weights.

Not covered: two wrong readings of a peer that is alone at its end evict both ends, and the run returns to a checkpoint.
"""

from __future__ import annotations

import asyncio
import random
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from trainer.models import load_architecture
from trainer.swarm import messages, reduce
from trainer.swarm.config import SwarmConfig
from trainer.swarm.frames import DTYPES, CallRefusedError

if TYPE_CHECKING:
    from trainer.swarm.sum_exchange import SumExchange


def list_tied_stages(config: SwarmConfig) -> tuple[int, ...]:
    """Return the stages with a copy of the tied matrix: the first and the last, or none."""
    model = load_architecture(config.arch).Config(**config.model)
    return (0, config.stages - 1) if config.stages > 1 and getattr(model, "tied_head", False) else ()


def add_means(own: Tensor, other: Tensor, dtype: torch.dtype) -> Tensor:
    """Return the sum of both ends' means of the matrix, fp32. `dtype`: the one in which they are sent."""
    return own.to(dtype).float() + other.to(dtype).float()


async def add_other_end(
    exchange: SumExchange, request: messages.Prepare, mean: Tensor
) -> tuple[Tensor, messages.TiedDigests | None]:
    """Return the stage's `mean [P]` with the other end's mean of the tied matrix added, and the digests for the vote.

    At stages without a copy, return `mean` itself and None. Raise `CallRefusedError` with the code "other_end" if the
    peer that was chosen there doesn't send its part.
    """
    state, dtype = exchange.state, DTYPES[exchange.state.config.sums]
    span = state.get_stage(request.step).tied_range
    if not span:
        return mean, None
    if not request.other_end:
        raise CallRefusedError("mismatch", "no peers of the other end, which has a copy of the tied matrix")
    own, read = mean[span.start : span.stop].to(dtype, copy=True), torch.empty(len(span), dtype=dtype)
    await exchange.publish("tied", request.attempt, own)
    source, semaphore = choose_source(request, exchange.transport.peer), asyncio.Semaphore(reduce.MAX_CONCURRENT_READS)

    async def read_chunk(chunk: range) -> None:
        async with semaphore:
            read[chunk.start : chunk.stop] = await exchange.read_part(source, "tied", request, chunk)

    try:
        await reduce.gather_or_cancel(read_chunk(chunk) for chunk in reduce.split_chunks(range(len(span))))
    except CallRefusedError as error:
        raise CallRefusedError("other_end", error.message) from error
    mean = mean.clone()  # peers of this stage may be reading their parts of it
    mean[span.start : span.stop] = add_means(own, read, dtype)
    digests: tuple[str, str] = await exchange.run_in_thread(state.digest_tied, request, own, read)
    return mean, messages.TiedDigests(own=digests[0], read=digests[1], source=source)


def choose_source(request: messages.Prepare, this_peer: str) -> str:
    """Return the peer of the other end to read from: evenly distributed, and another one at the next attempt."""
    order = random.Random(request.attempt).sample(request.other_end, len(request.other_end))
    return order[request.peers.index(this_peer) % len(order)]
