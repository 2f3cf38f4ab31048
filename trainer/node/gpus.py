"""This machine's GPUs and their state, from NVML, from `nvidia-smi`, or names only from /proc.

Not covered: GPUs of other makers; parts of one GPU (MIG), which count as the driver lists them.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from trainer.protocol import Gpu
from trainer.sandbox.gpu_devices import read_driver_facts

CONTROL = Path("/dev/nvidiactl")
THROTTLE_REASONS = 0x08 | 0x20 | 0x40 | 0x80
"""NVML's reasons for slower clocks that indicate a problem: hardware slowdown, heat (detected by software or hardware),
power brake. A power cap (0x04) is normal for a busy GPU."""


class GpuError(Exception):
    """The GPUs do not answer. The message is a sentence."""


@dataclass(frozen=True)
class GpuReading:
    """The current state of one GPU. None: its driver does not report it."""

    used_bytes: int | None = None
    temperature_celsius: float | None = None
    throttled: bool = False
    busy_percent: float | None = None  # share of the last fraction of a second in which a kernel ran
    processes: frozenset[int] = frozenset()  # ids of the processes that compute on it, as the driver sees them


class GpuReader(Protocol):
    """One source of GPU data. The GPUs are listed once; their state is read by each `read_gpus`."""

    gpus: tuple[Gpu, ...]
    cuda: str  # the newest CUDA version that the driver supports, such as "12.4"

    def read_gpus(self) -> tuple[GpuReading, ...]:
        """Return one reading per GPU in the order of `gpus`; empty if unsupported. Raise `GpuError`."""


class ProcGpuReader:
    """Names of the GPUs from the driver's files in /proc, without NVML and `nvidia-smi`."""

    def __init__(self) -> None:
        facts = read_driver_facts()
        self.gpus = tuple(Gpu(name=gpu.get("Model", "")[:80], uuid=gpu.get("GPU UUID", "")[:80]) for gpu in facts)
        self.cuda = ""

    def read_gpus(self) -> tuple[GpuReading, ...]:
        return ()


def select_visible_gpus(gpus: Sequence[Gpu], environment: Mapping[str, str] = os.environ) -> list[int]:
    """Return the indices of the lent GPUs: all, or those in the agent's own CUDA_VISIBLE_DEVICES.

    It lists UUIDs, their prefixes, or the indices of `nvidia-smi`. As in CUDA, an invalid entry ends the list.
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
