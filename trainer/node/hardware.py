"""Description of this machine for the site, and the labels by which jobs select nodes."""

from __future__ import annotations

import os
import platform
import re
import socket
import sys
from collections import Counter
from collections.abc import Sequence

import psutil

from trainer.node.gpus import GpuReader, UnreadableGpuReader
from trainer.protocol import Gpu, Hardware


def detect_hardware(
    disk_bytes: int, sandboxes: tuple[str, ...], gpus: GpuReader | None = None, bytes_per_second: float | None = None
) -> Hardware:
    """Return the hardware.

    `disk_bytes`: what a job may use; `sandboxes`: working drivers, the one in use first; `bytes_per_second`: measured
    speed of the network.
    """
    gpus = UnreadableGpuReader() if gpus is None else gpus
    return Hardware(
        hostname=socket.gethostname()[:200],
        platform=f"{platform.system()} {platform.release()} {platform.machine()}"[:200],
        python=platform.python_version(),
        cpus=len(list_processors()),
        memory_bytes=psutil.virtual_memory().total,
        disk_free_bytes=disk_bytes,
        gpus=tuple(gpu.name for gpu in gpus.gpus),
        sandboxes=sandboxes,
        gpu_details=gpus.gpus,
        unusable_gpus=gpus.unusable_gpus or None,
        cuda=gpus.cuda[:20],
        network_bytes_per_second=bytes_per_second,
        found_labels=derive_labels(gpus.gpus, disk_bytes),
    )


def describe_gpus(gpus: GpuReader) -> list[str]:
    """Return a sentence for each GPU of the machine: what was found and whether jobs may use it, or why not."""
    lines = [f"Found {gpu.name}, {gpu.memory_bytes / 2**30:.0f} GB. Jobs may use it." for gpu in gpus.gpus]
    lines += [f"Found {gpu.name}. No job may use it. {gpu.problem}" for gpu in gpus.unusable_gpus]
    if not gpus.gpus:
        cores = len(list_processors())
        lines.append(f"Found no {'usable ' if lines else ''}NVIDIA GPU. Jobs run on {cores} processor cores.")
    return lines


def list_processors() -> tuple[int, ...]:
    """Return the numbers of the processor cores that this process may use."""
    return tuple(sorted(os.sched_getaffinity(0))) if sys.platform == "linux" else tuple(range(os.cpu_count() or 1))


GB = 10**9
GPU_SIZES = (2, 3, 4, 6, 8, 10, 11, 12, 16, 20, 24, 32, 40, 48, 64, 80, 94, 96, 128, 141, 180, 192, 288)
"""Memory in GB of GPUs on the market. A driver reports at least this many decimal GB (a 24 GB card 24.1 with ECC on,
25.8 without)."""
DISK_SIZES = (50, 100, 250, 500, 1000, 2000, 4000, 8000)  # GB of free disk, decimal
VENDOR_WORDS = {"nvidia", "geforce", "rtx", "gtx", "tesla", "quadro", "graphics", "gpu"}
"""Words of a GPU name that do not identify the model."""
FORM_FACTOR = re.compile(r"\d+gb|sxm\d*|pcie|nvl|hbm.*|generation|blackwell|workstation|server|laptop|mobile")
"""First word of a GPU name that describes a form factor instead of a model."""


def derive_labels(gpus: Sequence[Gpu], disk_bytes: int) -> tuple[str, ...]:
    """Return `3090`, `2x3090`, `2x24gb`, `500gb`: GPUs by model, GPUs with this memory or more, and free disk.

    A job that needs fewer or smaller GPUs matches too, because matching compares the numbers.
    """
    models = Counter(model for gpu in gpus if (model := parse_gpu_model(gpu.name)))
    sizes = {size for gpu in gpus if (size := find_largest_size(gpu.memory_bytes, GPU_SIZES))}
    disk = find_largest_size(disk_bytes, DISK_SIZES)
    found = {*models, *(f"{count}x{model}" for model, count in models.items())}
    found |= {f"{sum(gpu.memory_bytes >= size * GB for gpu in gpus)}x{size}gb" for size in sizes}
    found |= {f"{disk}gb"} if disk else set()
    return tuple(sorted(label[:40] for label in found)[:64])


def find_largest_size(size: int, sizes: Sequence[int]) -> int | None:
    """Return the largest of `sizes`, in decimal GB, that fits into `size` bytes; None if none does."""
    return max((candidate for candidate in sizes if size >= candidate * GB), default=None)


def parse_gpu_model(name: str) -> str:
    """Return the model in a GPU's name: `3090ti` of "NVIDIA GeForce RTX 3090 Ti", `h100` of "NVIDIA H100 80GB"."""
    words: list[str] = []
    for word in re.findall(r"[a-z0-9]+", name.lower()):
        if FORM_FACTOR.fullmatch(word):
            break
        words += [] if word in VENDOR_WORDS else [word]
    return "".join(words)
