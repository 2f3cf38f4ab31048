"""This machine's GPUs: what they are and how they are, by NVML, by `nvidia-smi`, or by name only.

Not covered: other makers' GPUs; parts of one GPU (MIG), which count as what the driver lists.
"""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from trainer.protocol import Gpu

DRIVER = Path("/proc/driver/nvidia/gpus")
CONTROL = Path("/dev/nvidiactl")
THROTTLE_REASONS = 0x08 | 0x20 | 0x40 | 0x80
"""NVML's reasons for slower clocks that are nobody's wish: hardware slowdown, heat (noticed by software, by hardware),
power brake. A power cap (0x04) is what a GPU at work has all the time."""


class GpuError(Exception):
    """The GPUs do not answer, in a sentence."""


@dataclass(frozen=True)
class GpuReading:
    """How one GPU is just now. None: its driver does not tell."""

    used_bytes: int | None = None
    temperature_celsius: float | None = None
    throttled: bool = False
    busy_percent: float | None = None
    """Of the last fraction of a second, in which something was computed."""
    processes: frozenset[int] = frozenset()
    """That compute on it, by the ids that the driver sees."""


class GpuReader(Protocol):
    """One way of asking. What the GPUs are is asked once, how they are at each `read`."""

    gpus: tuple[Gpu, ...]
    cuda: str
    """The newest CUDA that the driver knows, such as "12.4"."""

    def read(self) -> tuple[GpuReading, ...]:
        """Return one reading for each of `gpus`, in their order; nothing where there is no way. Raise `GpuError`."""


class ProcGpuReader:
    """Without NVML and without `nvidia-smi`: the names that the driver leaves in /proc, if there is one."""

    def __init__(self) -> None:
        texts = [path.read_text() for path in sorted(DRIVER.glob("*/information"))]
        self.gpus = tuple(
            Gpu(name=find_field(text, "Model")[:80], uuid=find_field(text, "GPU UUID")[:80]) for text in texts
        )
        self.cuda = ""

    def read(self) -> tuple[GpuReading, ...]:
        return ()


def find_field(text: str, name: str) -> str:
    match = re.search(rf"^{name}:\s*(.+?)\s*$", text, re.MULTILINE)
    return match[1] if match else ""


def open_gpu_reader() -> GpuReader:
    """Return the best way that works here. Nothing is imported where there is no driver: the agent starts quickly."""
    if not (DRIVER.is_dir() or CONTROL.exists() or shutil.which("nvidia-smi")):
        return ProcGpuReader()
    from trainer.node import gpus_nvml, gpus_smi

    for open_one in (gpus_nvml.open_nvml_reader, gpus_smi.open_smi_reader):
        try:
            return open_one()
        except GpuError:
            continue
    return ProcGpuReader()


def select_visible_gpus(gpus: Sequence[Gpu], environment: Mapping[str, str] = os.environ) -> list[int]:
    """Return which of the GPUs the sponsor lends: all, or those that the agent's own CUDA_VISIBLE_DEVICES names.

    By UUID, the beginning of one, or the number that `nvidia-smi` shows. As CUDA does, it stops at a name that is none.
    """
    words = environment.get("CUDA_VISIBLE_DEVICES")
    if words is None:
        return list(range(len(gpus)))
    found: list[int] = []
    for word in (word.strip() for word in words.split(",")):
        fits = [
            at for at, gpu in enumerate(gpus) if word == str(at) or (word[:4] == "GPU-" and gpu.uuid.startswith(word))
        ]
        if len(fits) != 1 or fits[0] in found:
            break
        found += fits
    return found
