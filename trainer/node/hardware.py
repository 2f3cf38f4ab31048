"""Description of this machine for the site."""

from __future__ import annotations

import os
import platform
import socket
import sys

import psutil

from trainer.node.gpus import GpuReader, UnreadableGpuReader
from trainer.node.labels import derive_labels
from trainer.protocol import Hardware


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
