"""Which of the machine's GPUs a box may see: the device files of those that CUDA_VISIBLE_DEVICES names, no others.

The name is a GPU's UUID, as the node's agent writes it for each of its lanes; numbers mean other GPUs to other
programs, so with them, as without the variable, every GPU is there.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from pathlib import Path

VISIBLE = "CUDA_VISIBLE_DEVICES"
DEV = Path("/dev")
DRIVER = Path("/proc/driver/nvidia/gpus")
PATTERNS = ("nvidia*", "nvidia-caps/*", "dri/renderD*", "kfd")
"""Under /dev."""


def devices(environment: Mapping[str, str]) -> list[str]:
    """Return the device files for a box with this environment, or, where it says nothing, for one with our own."""
    found = sorted(path for pattern in PATTERNS for path in DEV.glob(pattern) if not path.is_dir())
    minors = named(environment.get(VISIBLE, os.environ.get(VISIBLE)))
    return [str(path) for path in found if minors is None or allowed(path, minors)]


def allowed(path: Path, minors: frozenset[str]) -> bool:
    """A GPU's own file if it is named, what all GPUs share, and no back door: CUDA needs no render node."""
    if path.parent.name == "dri" or path.name == "kfd":
        return False
    number = re.fullmatch(r"nvidia(\d+)", path.name)
    return number is None or number[1] in minors


def named(visible: str | None) -> frozenset[str] | None:
    """Return the numbers of the device files of the GPUs that are named by UUID; None: all of them."""
    if visible is None:
        return None
    uuids = [word for word in visible.split(",") if word]
    known = minors_by_uuid()
    return frozenset(known[uuid] for uuid in uuids) if known.keys() >= set(uuids) else None


def minors_by_uuid() -> dict[str, str]:
    """As the driver tells them; nothing without it."""
    facts = (dict(re.findall(r"^([^:\n]+):\s*(.+?)\s*$", path.read_text(), re.MULTILINE)) for path in informed())
    return {fact["GPU UUID"]: fact["Device Minor"] for fact in facts if "GPU UUID" in fact and "Device Minor" in fact}


def informed() -> list[Path]:
    return sorted(DRIVER.glob("*/information"))
