"""What this machine is."""

from __future__ import annotations

import os
import platform
import shutil
import socket
import sys
from pathlib import Path

from trainer.node.gpus import GpuReader, ProcGpuReader
from trainer.node.labels import derive_labels
from trainer.protocol import Hardware


def detect_hardware(
    home: Path, sandboxes: tuple[str, ...], gpus: GpuReader | None = None, network: float | None = None
) -> Hardware:
    """`home`: the folder whose free space counts; `sandboxes`: drivers that work here, the one in use first;
    `network`: bytes a second, as measured."""
    gpus = ProcGpuReader() if gpus is None else gpus
    free = shutil.disk_usage(home).free
    return Hardware(
        hostname=socket.gethostname()[:200],
        platform=f"{platform.system()} {platform.release()} {platform.machine()}"[:200],
        python=platform.python_version(),
        cpus=len(list_processors()),
        memory_bytes=memory(),
        disk_free_bytes=free,
        gpus=tuple(gpu.name for gpu in gpus.gpus),
        sandboxes=sandboxes,
        gpu_details=gpus.gpus,
        cuda=gpus.cuda[:20],
        network_bytes_per_second=network,
        found_labels=derive_labels(gpus.gpus, free),
    )


def list_processors() -> tuple[int, ...]:
    """Those that we may use, by their numbers."""
    return tuple(sorted(os.sched_getaffinity(0))) if sys.platform == "linux" else tuple(range(os.cpu_count() or 1))


def memory() -> int:
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
