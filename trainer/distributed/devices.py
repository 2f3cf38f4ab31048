"""Where a run computes: the device, Fabric in front of it, and its memory."""

from __future__ import annotations

import ctypes
import logging
import os
import resource
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import torch

from trainer.config.resolve import ResolvedConfig, count_cores
from trainer.config.train_config import ConfigError, TrainConfig
from trainer.training.metrics import MetricsLogger

if TYPE_CHECKING:
    from lightning.fabric import Fabric

TRIM_THRESHOLD, MMAP_MAX = -1, -4
"""Names of settings in glibc's malloc.h."""


def pick_device(config: TrainConfig) -> Literal["cpu", "cuda"]:
    if config.device == "cpu" or (config.device == "auto" and not torch.cuda.is_available()):
        return "cpu"
    if not torch.cuda.is_available():
        raise ConfigError("device cuda: torch finds no GPU here; --device cpu trains without one")
    if config.devices > torch.cuda.device_count():
        raise ConfigError(f"devices {config.devices}: torch finds {torch.cuda.device_count()} here")
    return "cuda"


def set_threads(config: TrainConfig) -> None:
    """Several processes on one CPU share its cores."""
    torch.set_num_threads(config.threads or max(1, count_cores() // config.devices))


def make_fabric(resolved: ResolvedConfig, logger: MetricsLogger | None) -> Fabric:
    """Return Fabric, for this process's device. Its import takes some seconds, which bad input should not wait for."""
    if resolved.device == "cpu":
        keep_memory()
    torch.set_float32_matmul_precision("high")  # TF32 where a GPU has it; changes nothing on a CPU
    from lightning.fabric import Fabric

    from trainer.distributed.strategies import strategy

    for name in ("lightning.fabric", "lightning.pytorch"):
        logging.getLogger(name).setLevel(logging.WARNING)  # what it has to say, run.json says

    fabric = Fabric(
        accelerator=resolved.device,
        devices=resolved.devices,
        strategy=strategy(resolved),
        precision="32-true" if resolved.precision == "fp32" else "bf16-mixed",
        loggers=logger,
    )
    fabric.launch()
    return fabric


def keep_memory() -> None:
    """Have glibc keep the memory of large tensors for the next step instead of returning it to the kernel each time.

    Getting it back, zeroed page by page, took a fifth of a small model's CPU time (measured at depth 4). The process
    keeps to its end what its largest step needs.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(TRIM_THRESHOLD, 2**31 - 1)
        mallopt(MMAP_MAX, 0)


def memory_bytes(device: torch.device) -> int:
    """Return the most memory used so far: of the GPU, or of this process."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device)
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit


def free_bytes() -> int | None:
    """Return the main memory that this process may still take: the machine's, or what its limits leave; None: unknown.

    Not covered: other processes in the same control group.
    """
    machine, group = Path("/proc/meminfo"), Path("/sys/fs/cgroup/memory.max")
    found = []
    if machine.exists():
        rows = dict(line.split(":") for line in machine.read_text().splitlines())
        found.append(int(rows["MemAvailable"].split()[0]) * 1024)
    if group.exists() and (most := group.read_text().strip()).isdigit():
        found.append(int(most) - used_bytes())
    for limit in (resource.RLIMIT_AS, resource.RLIMIT_DATA):
        soft, _ = resource.getrlimit(limit)
        if soft != resource.RLIM_INFINITY:
            found.append(soft - used_bytes(virtual=limit == resource.RLIMIT_AS))
    return min(found, default=None)


def used_bytes(virtual: bool = False) -> int:
    pages = Path("/proc/self/statm").read_text().split()
    return int(pages[0 if virtual else 1]) * os.sysconf("SC_PAGE_SIZE")
