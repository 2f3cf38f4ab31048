"""Which GPU device files a sandbox may see: those of the GPUs in CUDA_VISIBLE_DEVICES.

The node writes GPU UUIDs into that variable for each of its slots. Numbers mean different GPUs to different programs,
so with numbers, or without the variable, every GPU is visible.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from pathlib import Path

VISIBLE_GPUS_VARIABLE = "CUDA_VISIBLE_DEVICES"
DEV = Path("/dev")
DRIVER = Path("/proc/driver/nvidia/gpus")
PATTERNS = ("nvidia*", "nvidia-caps/*", "dri/renderD*", "kfd")  # under /dev


def list_gpu_devices(environment: Mapping[str, str]) -> list[str]:
    """Return the device files for this environment. An unset variable falls back to this process's own."""
    found = sorted(path for pattern in PATTERNS for path in DEV.glob(pattern) if not path.is_dir())
    minors = find_visible_minors(environment.get(VISIBLE_GPUS_VARIABLE, os.environ.get(VISIBLE_GPUS_VARIABLE)))
    return [str(path) for path in found if minors is None or is_visible(path, minors)]


def is_visible(path: Path, minors: frozenset[str]) -> bool:
    """Return True for a listed GPU's own file and for files that all GPUs share; CUDA needs no render nodes."""
    if path.parent.name == "dri" or path.name == "kfd":
        return False
    number = re.fullmatch(r"nvidia(\d+)", path.name)
    return number is None or number[1] in minors


def find_visible_minors(visible: str | None) -> frozenset[str] | None:
    """Return the device numbers of the GPUs listed by UUID; None means all GPUs."""
    if visible is None:
        return None
    uuids = {word for word in visible.split(",") if word}
    minors = {gpu.get("GPU UUID"): gpu["Device Minor"] for gpu in read_driver_facts() if "Device Minor" in gpu}
    return frozenset(minors[uuid] for uuid in uuids) if minors.keys() >= uuids else None


def read_driver_facts() -> list[dict[str, str]]:
    """Return what the driver's files in /proc say about each GPU, by name; empty without a driver."""
    texts = (path.read_text() for path in sorted(DRIVER.glob("*/information")))
    return [dict(re.findall(r"^([^:\n]+):\s*(.+?)\s*$", text, re.MULTILINE)) for text in texts]
