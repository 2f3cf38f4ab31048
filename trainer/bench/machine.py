"""Description of the machine and the packages of a benchmark."""

from __future__ import annotations

import importlib.metadata
import os
import platform
from pathlib import Path
from typing import Any

from trainer.accounting.cores import count_cores

PACKAGES = ("torch", "litgpt", "dailytrain")


def describe_machine(device: str, threads: int) -> dict[str, Any]:
    """Return processor, cores, memory and operating system. `device` is the GPU's name or `cpu`."""
    return {
        "device": device,
        "processor": find_processor_name(),
        "cores": count_cores(),
        "threads": threads,
        "memory_bytes": os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
        "platform": platform.platform(),
    }


def find_processor_name() -> str:
    """Return the processor's name from Linux, else from Python."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        lines = []
    names = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(names, platform.processor() or platform.machine())


def find_versions() -> dict[str, str]:
    """Return the versions of the compared packages, of those that are installed."""
    versions = {"python": platform.python_version()}
    for package in PACKAGES:
        try:
            versions[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            continue
    return versions
