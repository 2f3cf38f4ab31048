"""A head that is tied to the embedding: the first and the last stage have a copy of one matrix, and one gradient.

Each stage reduces its peers' gradient sums as always. Then each peer of the two ends reads the matrix's part of the
mean from one peer of the other end, and adds it to its own (`SumExchange.add_other_end`). A sum of two numbers doesn't
depend on their order, so all peers of both ends have the same bits, make the same update, and keep equal copies and
momenta.

Before the commit the coordinator compares the digests of `messages.TiedDigests`: all peers of an end must have the same
mean and weights, and all peers of the other end must have read that mean and have those weights.

Not covered: two wrong readings of a peer that is alone at its end evict both ends, and the run returns to a checkpoint.
"""

from __future__ import annotations

import random

import torch
from torch import Tensor

from trainer.models import load_architecture
from trainer.swarm import messages
from trainer.swarm.config import SwarmConfig


def list_tied_stages(config: SwarmConfig) -> tuple[int, ...]:
    """Return the stages with a copy of the tied matrix: the first and the last, or none."""
    model = load_architecture(config.arch).Config(**config.model)
    return (0, config.stages - 1) if config.stages > 1 and getattr(model, "tied_head", False) else ()


def add_means(own: Tensor, other: Tensor, dtype: torch.dtype) -> Tensor:
    """Return the sum of both ends' means of the matrix, fp32. `dtype`: the one in which they are sent."""
    return own.to(dtype).float() + other.to(dtype).float()


def choose_source(request: messages.Prepare, this_peer: str) -> str:
    """Return the peer of the other end to read from: evenly distributed, and another one at the next attempt."""
    order = random.Random(request.attempt).sample(request.other_end, len(request.other_end))
    return order[request.peers.index(this_peer) % len(order)]
