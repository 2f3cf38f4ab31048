"""The context of a slot of the node, which all of its jobs share."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from trainer.node.blobs import BlobCache, KeyedLocks
from trainer.node.disk_quota import DiskQuota
from trainer.node.gpu_monitor import GpuMonitor
from trainer.node.identity import Identity
from trainer.node.network_args import DEFAULT_NETWORK_ARGS, NetworkArgs
from trainer.node.slots import Slot
from trainer.sandbox import SandboxDriver

if TYPE_CHECKING:
    from trainer.rephrase.flags import RephraseOffer


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
