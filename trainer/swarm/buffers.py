"""How many micro-batches a worker may hold at once, between their way forward and back: what its free memory takes.

A worker that holds as many says so, and its caller asks another or waits; the coordinator starts no more micro-batches
than the tightest stage has room for. That is all the back-pressure there is.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import torch
from torch import Tensor, nn

from trainer.distributed.devices import free_bytes
from trainer.swarm.stage import Stage
from trainer.training.micro_batch import MEMORY_SHARE, measure_saved_bytes

WEIGHTS = 3
"""Copies of the weights' size left free: a micro-batch's gradients, and twice what an update needs on its way."""

MOST = 1024
"""More is never waited for at once; also the answer where nobody knows the free memory."""


def passage_bytes(stage: Stage) -> tuple[int, int]:
    """Return the bytes that a micro-batch keeps at a stage while it is further down, and those that its own way back
    takes in addition. Found by a forward pass over zeros."""
    config = stage.config
    tokens = torch.zeros(config.micro_batch, config.sequence_length, dtype=torch.int64)
    hidden = None if stage.first else torch.zeros(*tokens.shape, stage.input_width)
    given = 2 * tokens.nbytes + (0 if hidden is None else hidden.nbytes)

    def compute() -> Tensor:
        inputs = None if hidden is None else hidden.to(stage.device).requires_grad_()
        return stage.compute(tokens.to(stage.device), inputs, tokens.to(stage.device) if stage.last else None)

    graph = measure_saved_bytes(compute, stage.parameters.values()) + head_bytes(stage)
    output = tokens.numel() * stage.output_width * 4
    return (given + output, graph) if stage.recompute else (given + output + graph, 0)


def head_bytes(stage: Stage) -> int:
    """Return the bytes of the head's gradients, computed with the loss (`trainer.training.objective`)."""
    if not stage.last:
        return 0
    _, behind = stage.cut.ends(stage.model)
    parts = (getattr(holder, name) for holder, name in behind)
    return sum(p.nbytes for part in parts if isinstance(part, nn.Module) for p in part.parameters())


def room(stage: Stage, free: int | None = None) -> int:
    """Return how many micro-batches fit into so many free bytes (default: what the device has), at least 1."""
    free = free_memory(stage.device) if free is None else free
    if free is None:
        return MOST
    weights = WEIGHTS * sum(parameter.nbytes for parameter in stage.parameters.values())
    held, transient = passage_bytes(stage)
    return max(1, min(MOST, int((MEMORY_SHARE * free - weights - transient) / held)))


def free_memory(device: torch.device) -> int | None:
    """Return the bytes that are free on a device, None where nobody knows."""
    return torch.cuda.mem_get_info(device)[0] if device.type == "cuda" else free_bytes()


def in_flight(rooms: Mapping[int, Iterable[int]], wanted: int) -> int:
    """Return how many micro-batches to keep under way, given each stage's peers' room: at most `wanted`.

    One that has got down to a stage is held by all those above, so each stage must have room for all.
    """
    return max(1, min(wanted, *(sum(peers) for peers in rooms.values())))
