"""Slots: several jobs at a time on one machine, each with its own GPUs and processor cores.

`bind_thread` binds a thread to its slot's cores, and with it every thread and process it starts, so code that counts
cores (PyTorch does) counts those. A single slot binds nothing and uses every GPU.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from trainer.accounting.cores import WAIT_VARIABLES, limit_spinning
from trainer.node.blobs import BlobCache, KeyedLocks
from trainer.node.disk_quota import DiskQuota
from trainer.node.gpu_monitor import GpuMonitor
from trainer.node.identity import Identity
from trainer.node.network_args import DEFAULT_NETWORK_ARGS, NetworkArgs
from trainer.protocol import Gpu, split_evenly
from trainer.sandbox import SandboxDriver
from trainer.sandbox.gpu_devices import VISIBLE_GPUS_VARIABLE

if TYPE_CHECKING:
    from trainer.rephrase.flags import RephraseOffer

INHERITED = (VISIBLE_GPUS_VARIABLE, "CUDA_DEVICE_ORDER", "NVIDIA_VISIBLE_DEVICES", "OMP_NUM_THREADS", *WAIT_VARIABLES)
"""Variables of the agent that a job's processes inherit."""


@dataclass(frozen=True)
class Slot:
    number: int = 0  # from 0
    count: int = 1  # slots of this machine
    gpus: tuple[Gpu, ...] = ()
    processors: tuple[int, ...] = ()  # numbers of its cores; empty: all of the machine
    shares_gpus: bool = False  # whether the machine has GPUs that are not this slot's

    @property
    def uuids(self) -> tuple[str, ...]:
        return tuple(gpu.uuid for gpu in self.gpus)

    def build_environment(self) -> dict[str, str]:
        """Return the variables of a job's process. GPUs are listed by UUID, which is the same inside a sandbox."""
        found = {name: os.environ[name] for name in INHERITED if name in os.environ}
        if self.shares_gpus:
            uuids = ",".join(self.uuids)
            found |= {VISIBLE_GPUS_VARIABLE: uuids, "NVIDIA_VISIBLE_DEVICES": uuids or "void"}
        if self.count > 1:
            found["OMP_NUM_THREADS"] = str(len(self.processors))
        limit_spinning(found)
        return found

    def limit_gpus(self, count: int) -> Slot:
        """Return the slot with its first `count` GPUs."""
        return self if count >= len(self.gpus) else replace(self, gpus=self.gpus[:count], shares_gpus=True)

    def bind_thread(self) -> None:
        """Bind this thread, and what it starts, to the slot's cores, where the system supports it."""
        if self.processors and hasattr(os, "sched_setaffinity"):
            os.sched_setaffinity(0, self.processors)

    def __str__(self) -> str:
        return f"Slot {self.number + 1} of {self.count}"


def split_into_slots(
    gpus: Sequence[Gpu], processors: Sequence[int], count: int, has_unusable_gpus: bool = False
) -> list[Slot]:
    """Split the machine evenly; more slots than cores share cores."""
    if count == 1:
        return [Slot(gpus=tuple(gpus), shares_gpus=has_unusable_gpus)]
    return [
        Slot(
            number=number,
            count=count,
            gpus=split_evenly(gpus, number, count),
            processors=split_evenly(processors, number, count) or (processors[number % len(processors)],),
            shares_gpus=bool(gpus) or has_unusable_gpus,
        )
        for number in range(count)
    ]


@dataclass(frozen=True)
class SlotContext:
    home: Path
    identity: Identity
    sandbox: SandboxDriver
    blobs: BlobCache  # this and all other caches, `gpu_monitor` and `dataset_locks` are shared by all slots
    weights: BlobCache  # of models that generate text
    evaluation_data: BlobCache
    quota: DiskQuota
    gpu_monitor: GpuMonitor
    slot: Slot
    dataset_locks: KeyedLocks  # by hash, held while a dataset is downloaded or prepared
    offer: RephraseOffer | None = None  # the rephrasing back end; None if there is none
    network: NetworkArgs = DEFAULT_NETWORK_ARGS  # how other swarm machines reach this one
