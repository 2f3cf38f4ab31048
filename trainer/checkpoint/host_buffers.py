"""Pinned main memory for copies of a GPU's tensors, reused by all checkpoints of a run.

A GPU writes to pinned memory at the full rate of its bus and without the CPU. Pinning takes long, so it is done once.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor

SEGMENT_BYTES = 2**30  # a power of two, to which torch rounds pinned memory up
ALIGNMENT = 64


class HostBuffers:
    """Memory for one checkpoint at a time. `allocate`: returns that many bytes, uint8, on the CPU."""

    def __init__(self, allocate: Callable[[int], Tensor], segment_bytes: int = SEGMENT_BYTES) -> None:
        self.allocate = allocate
        self.segment_bytes = segment_bytes
        self.segments: list[Tensor] = []
        self.number = self.used = 0  # of the segment that is being filled, and its bytes in use

    def reuse(self) -> None:
        """Mark all memory as free; later copies overwrite earlier ones."""
        self.number = self.used = 0

    def copy(self, tensor: Tensor) -> Tensor:
        """Return a copy, which a GPU may still be writing: synchronize before it is read."""
        count = tensor.numel() * tensor.element_size()
        if count == 0:
            return tensor.to("cpu", copy=True)
        # A storage of its own for each tensor: `torch.save` writes whole storages.
        memory = torch.from_numpy(self.take_segment(count).numpy()[self.used : self.used + count])
        self.used += math.ceil(count / ALIGNMENT) * ALIGNMENT
        return memory.view(tensor.dtype).view(tensor.shape).copy_(tensor, non_blocking=True)

    def take_segment(self, count: int) -> Tensor:
        """Return the segment whose memory from `used` on has that many bytes; allocate one if none has."""
        while self.number < len(self.segments) and self.used + count > len(self.segments[self.number]):
            self.number, self.used = self.number + 1, 0
        if self.number == len(self.segments):
            self.segments.append(self.allocate(max(count, self.segment_bytes)))
        return self.segments[self.number]
