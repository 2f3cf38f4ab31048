"""A worker's memory plan: how many micro-batches between their forward and backward passes, and how many texts, fit.

Calls beyond a worker's slots wait. The coordinator starts no more micro-batches than the stage with the fewest slots
has. There is no other back-pressure. Texts are the caches of those that are being sampled.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, is_dataclass
from typing import Any

import torch
from torch import Tensor, nn

from trainer.distributed.devices import get_free_memory_bytes
from trainer.ops.devices import get_free_gpu_memory_bytes
from trainer.swarm.stage import Stage
from trainer.training.loop import MEMORY_SHARE, measure_saved_bytes

RESERVED_COPIES = 3
"""Multiples of the weights' size to leave free: for a micro-batch's gradients, and two for temporaries of an update."""

MAX_SLOTS = 1024
MAX_CACHES = 8  # Texts that a worker remembers: twice as many as are sampled at once, because lost ones leave theirs
CACHE_SHARE = 0.25  # Largest part of the memory for micro-batches that texts may take


@dataclass(frozen=True)
class MemoryPlan:
    slots: int  # Micro-batches, at least 1
    texts: int  # 0: too little memory to sample


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


def measure_text(stage: Stage) -> int:
    """Return the bytes of the cache of a text as long as a row, measured by reading zeros."""
    cache, length = stage.build_cache(), stage.config.sequence_length
    hidden = None if stage.is_first else torch.zeros(1, length, stage.input_width)
    stage.advance(torch.zeros(1, length, dtype=torch.int64), hidden, cache)
    storages = [tensor.untyped_storage() for tensor in iterate_tensors(cache)]
    return sum({storage.data_ptr(): storage.nbytes() for storage in storages}.values())


def iterate_tensors(value: Any) -> Iterator[Tensor]:
    """Yield the tensors in a cache: dataclasses, modules, lists, tuples and dicts of them."""
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, nn.Module):
        yield from value.buffers()
    elif isinstance(value, list | tuple | dict) or is_dataclass(value):
        parts = (
            value if isinstance(value, list | tuple) else (value if isinstance(value, dict) else vars(value)).values()
        )
        for part in parts:
            yield from iterate_tensors(part)


def plan_memory(stage: Stage, free: int | None = None) -> MemoryPlan:
    """Return what fits into `free` bytes (default: the device's free memory)."""
    if free is None:
        on_gpu = stage.device.type == "cuda"
        free = get_free_gpu_memory_bytes(stage.device) if on_gpu else get_free_memory_bytes()
    weights = RESERVED_COPIES * sum(parameter.nbytes for parameter in stage.parameters.values())
    available, text = max(0.0, MEMORY_SHARE * free - weights), measure_text(stage)
    texts = min(MAX_CACHES, int(CACHE_SHARE * available / max(1, text)))
    slots = int((available - texts * text) / measure_micro_batch(stage))
    return MemoryPlan(max(1, min(MAX_SLOTS, slots)), texts)


def limit_in_flight(slots: Iterable[Iterable[int]], limit: int) -> int:
    """Return the number of micro-batches to run at once, at most `limit`, given the slots of peers by stage.

    A micro-batch occupies a slot at its stage and at all stages before it, so each stage needs a slot for all.
    """
    return max(1, min(limit, *(sum(peers) for peers in slots)))
