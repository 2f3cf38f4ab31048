"""The software and hardware that a run's numbers depend on, for `run.json`."""

from __future__ import annotations

import importlib.metadata
import platform
from typing import Any

import torch

from trainer.ops import devices
from trainer.ops.attention import describe_kernels as describe_attention

PACKAGES = ("torch", "lightning-fabric", "numpy", "tokenizers")


def describe_environment(device: torch.device) -> dict[str, Any]:
    on_gpu = device.type == "cuda"
    return {
        "python": platform.python_version(),
        "platform": platform.platform(),
        "device": devices.get_gpu_name(device) if on_gpu else torch.backends.cpu.get_cpu_capability(),
        "threads": torch.get_num_threads(),
        "attention": describe_attention(device),
        **{name: find_version(name) for name in PACKAGES},
    }


def find_version(package: str) -> str | None:
    """Return a package's version, None without metadata: `lightning` brings lightning-fabric without its own."""
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None
