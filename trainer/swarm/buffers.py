"""Slots: how many micro-batches fit into a worker's free memory between their forward and backward passes.

Calls beyond a worker's slots wait. The coordinator starts no more micro-batches than the stage with the fewest slots
has. There is no other back-pressure.
"""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor, nn

from trainer.distributed.devices import get_free_memory_bytes
from trainer.swarm.stage import Stage
from trainer.training.micro_batch import MEMORY_SHARE, measure_saved_bytes

RESERVED_COPIES = 3
"""Multiples of the weights' size to leave free: for a micro-batch's gradients, and two for temporaries of an update."""

MAX_SLOTS = 1024


def measure_micro_batch(stage: Stage) -> int:
    """Return the bytes that a micro-batch occupies until its backward pass, measured by a forward pass over zeros."""
    config = stage.config
    tokens = torch.zeros(config.micro_batch, config.sequence_length, dtype=torch.int64)
    hidden = None if stage.is_first else torch.zeros(*tokens.shape, stage.input_width)
    received = 2 * tokens.nbytes + (0 if hidden is None else hidden.nbytes)

    def compute() -> Tensor:
        inputs = None if hidden is None else hidden.to(stage.device).requires_grad_()
        return stage.compute_output(tokens.to(stage.device), inputs, tokens.to(stage.device) if stage.is_last else None)

    graph = measure_saved_bytes(compute, stage.parameters.values()) + count_head_bytes(stage)
    return received + tokens.numel() * stage.output_width * 4 + graph


def count_head_bytes(stage: Stage) -> int:
    """Return the bytes of the head's gradients, which are computed with the loss (`trainer.ops.losses`)."""
    if not stage.is_last:
        return 0
    _, end_parts = stage.partition.get_end_parts(stage.model)
    parts = (getattr(holder, name) for holder, name in end_parts)
    return sum(p.nbytes for part in parts if isinstance(part, nn.Module) for p in part.parameters())


def count_slots(stage: Stage, free: int | None = None) -> int:
    """Return how many micro-batches fit into `free` bytes (default: the device's free memory), at least 1."""
    if free is None:
        on_gpu = stage.device.type == "cuda"
        free = torch.cuda.mem_get_info(stage.device)[0] if on_gpu else get_free_memory_bytes()
    weights = RESERVED_COPIES * sum(parameter.nbytes for parameter in stage.parameters.values())
    return max(1, min(MAX_SLOTS, int((MEMORY_SHARE * free - weights) / measure_micro_batch(stage))))


def limit_in_flight(slots: Iterable[Iterable[int]], limit: int) -> int:
    """Return the number of micro-batches to run at once, at most `limit`, given the slots of peers by stage.

    A micro-batch occupies a slot at its stage and at all stages before it, so each stage needs a slot for all.
    """
    return max(1, min(limit, *(sum(peers) for peers in slots)))
