"""Where a lane of the node works: the same for all of its jobs."""

from __future__ import annotations

import threading
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from trainer.node.blobs import Blobs
from trainer.node.health import Vitals
from trainer.node.identity import Identity
from trainer.node.lanes import Lane
from trainer.node.reach import OPEN, Reach
from trainer.sandbox import Driver

if TYPE_CHECKING:
    from trainer.rephrase.flags import Offer


@dataclass(frozen=True)
class Place:
    home: Path
    identity: Identity
    sandbox: Driver
    blobs: Blobs
    """This, `weights`, `vitals` and `preparing` are shared by all lanes."""
    weights: Blobs
    """Of models that were asked to write."""
    vitals: Vitals
    lane: Lane
    preparing: threading.Lock
    """Held while a dataset is being made."""
    offer: Offer | None = None
    """What it rephrases with."""
    reach: Reach = OPEN
    """How a swarm's other machines reach this one."""
