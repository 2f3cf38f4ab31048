"""Where a lane of the node works: the same for all of its jobs."""

from __future__ import annotations

import threading
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from trainer.node.blobs import BlobCache
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
    blobs: BlobCache
    """This, `weights`, `vitals` and `preparing` are shared by all lanes."""
    weights: BlobCache
    """Of models that were asked to write."""
    vitals: GpuMonitor
    lane: Slot
    preparing: threading.Lock
    """Held while a dataset is being made."""
    offer: RephraseOffer | None = None
    """What it rephrases with."""
    reach: NetworkArgs = DEFAULT_NETWORK_ARGS
    """How a swarm's other machines reach this one."""
