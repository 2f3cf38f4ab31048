"""Several jobs at a time on one machine: each lane has its own GPUs and its own processor cores.

A lane's cores bind the thread that calls `settle`, the threads it starts and so every process that it starts: what
counts cores (PyTorch does) then counts those. With one lane nothing is bound and every GPU is everybody's.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass

from trainer.protocol import Gpu, split_evenly
from trainer.sandbox.gpu_devices import VISIBLE_GPUS_VARIABLE

INHERITED = (VISIBLE_GPUS_VARIABLE, "CUDA_DEVICE_ORDER", "NVIDIA_VISIBLE_DEVICES", "OMP_NUM_THREADS")
"""Of our own environment, what a job's processes get."""


@dataclass(frozen=True)
class Slot:
    number: int = 0
    """From 0."""
    lanes: int = 1
    gpus: tuple[Gpu, ...] = ()
    processors: tuple[int, ...] = ()
    """Numbers of its cores; none: all of the machine."""
    divided: bool = False
    """Some GPUs of the machine may be another lane's."""

    @property
    def uuids(self) -> tuple[str, ...]:
        return tuple(gpu.uuid for gpu in self.gpus)

    def environment(self) -> dict[str, str]:
        """Return what tells a job's process about its share: GPUs by UUID, which mean the same inside a sandbox."""
        ours = {name: os.environ[name] for name in INHERITED if name in os.environ}
        if self.divided:
            ours |= {
                VISIBLE_GPUS_VARIABLE: ",".join(self.uuids),
                "NVIDIA_VISIBLE_DEVICES": ",".join(self.uuids) or "void",
            }
        if self.lanes > 1:
            ours["OMP_NUM_THREADS"] = str(len(self.processors))
        return ours

    def settle(self) -> None:
        """Bind this thread, and what it will start, to the lane's cores, where the system can."""
        if self.processors and hasattr(os, "sched_setaffinity"):
            os.sched_setaffinity(0, self.processors)

    def __str__(self) -> str:
        return f"Lane {self.number + 1} of {self.lanes}"


def split_into_slots(gpus: Sequence[Gpu], processors: Sequence[int], lanes: int) -> list[Slot]:
    """Share the machine out evenly; more lanes than cores share cores."""
    if lanes == 1:
        return [Slot(gpus=tuple(gpus))]
    return [
        Slot(
            number=number,
            lanes=lanes,
            gpus=split_evenly(gpus, number, lanes),
            processors=split_evenly(processors, number, lanes) or (processors[number % len(processors)],),
            divided=bool(gpus),
        )
        for number in range(lanes)
    ]
