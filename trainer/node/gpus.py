"""This machine's GPUs and their state. Each card is read and judged by itself.

Not covered: GPUs of other makers.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from trainer.protocol import Gpu
from trainer.sandbox.gpu_devices import read_driver_facts

THROTTLE_REASONS = 0x08 | 0x20 | 0x40 | 0x80
"""NVML's reasons for slower clocks that indicate a problem: hardware slowdown, heat (detected by software or hardware),
power brake. A power cap (0x04) is normal for a busy GPU."""


@dataclass(frozen=True)
class GpuReading:
    """The current state of one GPU. None: its driver does not report it."""

    used_bytes: int | None = None
    temperature_celsius: float | None = None
    throttled: bool = False
    busy_percent: float | None = None  # share of the last fraction of a second in which a kernel ran
    processes: frozenset[int] = frozenset()  # ids of the processes that compute on it, as the driver sees them
    problem: str = ""  # why it cannot be used now: the end of a sentence; empty if it can


class GpuReader(Protocol):
    """One source of GPU data. The GPUs are listed once; their state is read by each `read_gpus`."""

    gpus: tuple[Gpu, ...]  # those that jobs may use
    unusable_gpus: tuple[Gpu, ...]  # the others, each with its `problem`
    cuda: str  # the newest CUDA version that the driver supports, such as "12.4"

    def read_gpus(self) -> tuple[GpuReading, ...]:
        """Return one reading for each of `gpus`, in their order."""


class UnreadableGpuReader:
    """GPUs that the driver lists in /proc, where NVML does not work. No job may use them. By default there are none."""

    def __init__(self, problem: str = "") -> None:
        """`problem`: why NVML does not work, in a sentence; empty on a machine without a GPU."""
        self.gpus: tuple[Gpu, ...] = ()
        self.cuda = ""
        facts = (read_driver_facts() or [{}]) if problem else []
        self.unusable_gpus = tuple(
            Gpu(name=gpu.get("Model", "NVIDIA GPU")[:80], uuid=gpu.get("GPU UUID", "")[:80], problem=problem[:300])
            for gpu in facts
        )

    def read_gpus(self) -> tuple[GpuReading, ...]:
        return ()


def select_visible_gpus(gpus: Sequence[Gpu], environment: Mapping[str, str] = os.environ) -> list[int]:
    """Return the indices of the lent GPUs: all, or those in the agent's own CUDA_VISIBLE_DEVICES.

    It lists UUIDs, their prefixes, or indices. As in CUDA, an invalid entry ends the list.
    """
    variable = environment.get("CUDA_VISIBLE_DEVICES")
    if variable is None:
        return list(range(len(gpus)))
    found: list[int] = []
    for entry in map(str.strip, variable.split(",")):
        is_uuid = entry.startswith("GPU-")
        matches = [i for i, gpu in enumerate(gpus) if entry == str(i) or (is_uuid and gpu.uuid.startswith(entry))]
        if len(matches) != 1 or matches[0] in found:
            break
        found += matches
    return found
