"""How each architecture is cut into stages: one file for each way, and one line here for each architecture."""

from __future__ import annotations

import importlib
from functools import lru_cache
from typing import cast

from trainer.models import PRESETS
from trainer.swarm.cuts.base import Cut, CutError, share

__all__ = ["CUTS", "Cut", "CutError", "cut_of", "share"]

CUTS = {
    "gpt": "trainer.swarm.cuts.gpt",
    "smear": "trainer.swarm.cuts.gpt",
    "litgpt": "trainer.swarm.cuts.litgpt",
    "rwkv5": "trainer.swarm.cuts.rwkv5",
}
"""nanogpt is missing: its head is its embedding, which cannot be at both ends."""


@lru_cache
def cut_of(arch: str) -> Cut:
    """Return how to cut an architecture; raise `CutError` for one that cannot be."""
    family, _ = PRESETS.get(arch, (arch, None))
    if family not in CUTS:
        raise CutError(f"{arch} cannot be cut into stages; these can: {', '.join(CUTS)}")
    return cast("Cut", importlib.import_module(CUTS[family]))
