"""Partitioning of architectures into pipeline stages: one module per model family, one line here per architecture."""

from __future__ import annotations

import importlib
from functools import lru_cache
from typing import cast

from trainer.models import PRESETS
from trainer.swarm.partitions.base import Partition, PartitionError, StageCache, balance_blocks

__all__ = ["PARTITIONS", "Partition", "PartitionError", "StageCache", "balance_blocks", "get_partition"]

PARTITIONS = {
    "gpt": "trainer.swarm.partitions.gpt",
    "smear": "trainer.swarm.partitions.gpt",
    "nanogpt": "trainer.swarm.partitions.nanogpt",
    "litgpt": "trainer.swarm.partitions.litgpt",
    "rwkv5": "trainer.swarm.partitions.rwkv5",
}


@lru_cache
def get_partition(arch: str) -> Partition:
    """Return the partition module of an architecture; raise `PartitionError` if it has none."""
    family, _ = PRESETS.get(arch, (arch, None))
    if family not in PARTITIONS:
        raise PartitionError(f"{arch} cannot be partitioned into stages; these can: {', '.join(PARTITIONS)}")
    return cast("Partition", importlib.import_module(PARTITIONS[family]))
