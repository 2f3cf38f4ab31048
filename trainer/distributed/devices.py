"""The devices of a run, Fabric on them, and memory in use and available."""

from __future__ import annotations

import importlib
import logging
import os
import resource
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import psutil
import torch

from trainer.errors import MachineError
from trainer.ops.attention import activate_flash_attention
from trainer.ops.devices import count_gpus, get_peak_gpu_memory_bytes, is_gpu_available
from trainer.ops.heap import keep_freed_memory

if TYPE_CHECKING:
    from lightning_fabric import Fabric
    from lightning_fabric.loggers import Logger


class DeviceError(MachineError):
    """The requested devices do not exist here."""


def select_device(requested: str, devices: int) -> Literal["cpu", "cuda"]:
    """Return the kind of device for `auto`, `cpu` or `cuda`, and configure its allocator before anything uses it.
    Raises `DeviceError` if there are too few GPUs."""
    if requested == "cpu" or (requested == "auto" and not is_gpu_available()):
        configure_allocator("cpu")
        return "cpu"
    if not is_gpu_available():
        raise DeviceError("device cuda: torch finds no GPU here; --device cpu trains without one")
    if devices > count_gpus():
        raise DeviceError(f"devices {devices}: torch finds {count_gpus()} here")
    configure_allocator("cuda")
    return "cuda"


def configure_allocator(device: str) -> None:
    """On a GPU let segments grow instead of leaving gaps, which large models need. CUDA's allocator reads its settings
    once, when anything starts CUDA: a question about the card's memory is enough."""
    if device == "cpu":
        keep_freed_memory()
    else:
        os.environ.setdefault("PYTORCH_ALLOC_CONF", "expandable_segments:True")


def build_fabric(device: str, devices: int, strategy: str, precision: str, logger: Logger | None) -> Fabric:
    """Return Fabric, launched for this process's device. Its import takes seconds: check the input first."""
    configure_allocator(device)
    torch.set_float32_matmul_precision("high")  # TF32 on GPUs that have it; no effect on a CPU
    import_fabric()
    from lightning_fabric import Fabric

    from trainer.distributed.strategies import build_strategy

    for name in ("lightning_fabric", "lightning.pytorch"):
        logging.getLogger(name).setLevel(logging.WARNING)  # run.json has what they report

    fabric = Fabric(
        accelerator=device,
        devices=devices,
        strategy=build_strategy(strategy, devices),
        precision="32-true" if precision == "fp32" else "bf16-mixed",
        loggers=logger,
    )
    fabric.launch()
    if fabric.device.type == "cuda":
        activate_flash_attention(fabric.device)
    return fabric


def import_fabric() -> None:
    """Import Lightning Fabric, but not torchmetrics, of which it only asks the version.

    torchmetrics imports transformers, scikit-learn, pandas and matplotlib: half of a run's start.
    """
    absent = "torchmetrics" not in sys.modules
    if absent:
        sys.modules["torchmetrics"] = None  # type: ignore[assignment]
    try:
        importlib.import_module("lightning_fabric")
    except ModuleNotFoundError as error:
        raise MachineError(f"training needs the package {error.name}: pip install 'dailytrain[training]'") from error
    finally:
        if absent:
            del sys.modules["torchmetrics"]


def get_peak_memory_bytes(device: torch.device) -> int:
    """Return the peak memory use: of the GPU, or of this process."""
    if device.type == "cuda":
        return get_peak_gpu_memory_bytes(device)
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit


def get_free_memory_bytes() -> int:
    """Return the main memory that this process can still use: the machine's, or what its limits leave.

    Not covered: other processes in the same control group.
    """
    used = psutil.Process().memory_info()
    free = [psutil.virtual_memory().available]
    control_group = Path("/sys/fs/cgroup/memory.max")
    if control_group.exists() and (limit := control_group.read_text().strip()).isdigit():
        free.append(int(limit) - used.rss)
    for kind, used_bytes in ((resource.RLIMIT_AS, used.vms), (resource.RLIMIT_DATA, used.rss)):
        soft, _ = resource.getrlimit(kind)
        if soft != resource.RLIM_INFINITY:
            free.append(soft - used_bytes)
    return min(free)
