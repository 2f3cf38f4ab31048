"""What this machine is."""

from __future__ import annotations

import os
import platform
import re
import shutil
import socket
import sys
from pathlib import Path

from trainer.wire import Hardware

GPUS = Path("/proc/driver/nvidia/gpus")


def detect(home: Path, sandboxes: tuple[str, ...]) -> Hardware:
    """`home`: the folder whose free space counts; `sandboxes`: drivers that work here, the one in use first."""
    return Hardware(
        hostname=socket.gethostname()[:200],
        platform=f"{platform.system()} {platform.release()} {platform.machine()}"[:200],
        python=platform.python_version(),
        cpus=processors(),
        memory_bytes=memory(),
        disk_free_bytes=shutil.disk_usage(home).free,
        gpus=gpus(),
        sandboxes=sandboxes,
    )


def processors() -> int:
    """Those that we may use."""
    return len(os.sched_getaffinity(0)) if sys.platform == "linux" else os.cpu_count() or 1


def memory() -> int:
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def gpus() -> tuple[str, ...]:
    """Model names as NVIDIA's driver tells them; nothing without it."""
    found = (path.read_text() for path in sorted(GPUS.glob("*/information")))
    return tuple(match[1] for text in found if (match := re.search(r"^Model:\s*(.+?)\s*$", text, re.MULTILINE)))
