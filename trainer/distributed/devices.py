"""The devices of a run: Fabric on them, agreement between their processes, memory in use and available.

With several devices there is one process for each, on GPUs (NCCL) or CPUs (gloo). `ddp` gives each the whole model and
averages gradients; `fsdp` and `zero2` shard the weights (`trainer.distributed.sharding`). Results equal those of one
device except for the order of sums. A checkpoint has whole tensors, so a run may continue with another strategy. Each
process evaluates all of dev: the result is then identical everywhere, and evaluation is not charged.
"""

from __future__ import annotations

import importlib
import logging
import os
import resource
import shutil
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import psutil
import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from trainer.errors import MachineError
from trainer.ops.devices import (
    count_gpus,
    get_peak_gpu_memory_bytes,
    get_row_gradients,
    is_gpu_available,
    keep_freed_memory,
)

if TYPE_CHECKING:
    from lightning_fabric import Fabric
    from lightning_fabric.loggers import Logger
    from lightning_fabric.strategies import Strategy


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
    return fabric


def build_strategy(name: str, devices: int) -> Strategy | str:
    """Return Fabric's strategy for `single`, `ddp`, `fsdp` or `zero2`."""
    if name in ("single", "ddp"):
        return "auto" if name == "single" else "ddp"
    from trainer.distributed.sharding import build_sharding_strategy

    return build_sharding_strategy(name, devices)


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


def has_compiler(device: str) -> bool:
    """Return whether torch.compile can run: on a CPU it needs a C++ compiler."""
    return device == "cuda" or any(shutil.which(name) for name in (os.environ.get("CXX", "g++"), "g++", "clang++"))


def is_writable(folder: Path) -> bool:
    """Return whether this process can create this folder or write to it."""
    existing = next(parent for parent in (folder, *folder.parents) if parent.exists())
    return os.access(existing, os.W_OK)


def set_cache_folder() -> None:
    """Set the cache folder unless the environment does. Before torch imports its compiler, which sets a default."""
    from trainer.data.dataset import get_cache_folder  # what computes without data needs none of it

    folder = get_cache_folder().parent / "compiled"
    if not is_writable(folder):
        folder = Path(tempfile.gettempdir()) / "dailytrain-compiled"
    os.environ.setdefault("TORCHINDUCTOR_CACHE_DIR", str(folder))
    os.environ.setdefault("TRITON_CACHE_DIR", str(folder / "triton"))


# --- agreement between processes --------------------------------------------------------------------------------------


def average_across_processes(fabric: Fabric, values: Sequence[float]) -> list[float]:
    """Return the means over all processes, the same numbers in each, so that all take the same decisions."""
    if fabric.world_size == 1:
        return list(values)
    mean: Any = fabric.all_reduce(torch.tensor(values, dtype=torch.float64, device=fabric.device), reduce_op="mean")
    return mean.tolist()


def average_tensor(fabric: Fabric, value: Tensor) -> Tensor:
    """Return the mean of a tensor over all processes, on the device."""
    if fabric.world_size == 1:
        return value
    mean: Any = fabric.all_reduce(value.double(), reduce_op="mean")
    return mean


def compute_gradient_norm(parameters: Sequence[nn.Parameter]) -> Tensor | None:
    """Return the norm of all gradients together in fp32, None if there are none."""
    gradients = [parameter.grad for parameter in parameters if parameter.grad is not None]
    tables = filter(None, map(get_row_gradients, parameters))
    norms = [torch.linalg.vector_norm(sums) for table in tables for _, sums, _ in table.iterate_sums()]
    wide = [gradient for gradient in gradients if gradient.dtype != torch.bfloat16]
    norms += [gather_tensor(torch.nn.utils.get_total_norm(wide))] if wide else []
    norms += [torch.linalg.vector_norm(each, dtype=torch.float32) for each in gradients if each.dtype == torch.bfloat16]
    if len(norms) < 2:
        return norms[0] if norms else None
    return torch.linalg.vector_norm(torch.stack(norms))


# --- sharded tensors (torch's DTensor); other tensors are returned unchanged ------------------------------------------


def is_sharded(tensor: Tensor) -> bool:
    # Not isinstance: importing DTensor takes long.
    return hasattr(tensor, "device_mesh")


def get_local_tensor(tensor: Tensor) -> Tensor:
    """Return what this process holds of a tensor."""
    return tensor.to_local() if is_sharded(tensor) else tensor


def gather_tensor(tensor: Tensor) -> Tensor:
    """Return the whole tensor."""
    return tensor.full_tensor() if is_sharded(tensor) else tensor


@contextmanager
def gather_weights(objective: nn.Module) -> Iterator[None]:
    """Context manager in which all processes together may call the objective's model directly."""
    is_fsdp = hasattr(objective, "unshard")
    if is_fsdp:
        objective.unshard()
    try:
        yield
    finally:
        if is_fsdp:
            objective.reshard()


def get_full_optimizer_state(optimizer: Optimizer) -> dict[str, Any]:
    """Return an optimizer's `state_dict` with whole tensors."""
    content = optimizer.state_dict()
    state = {
        number: {name: gather_tensor(value) if isinstance(value, Tensor) else value for name, value in values.items()}
        for number, values in content["state"].items()
    }
    return {**content, "state": state}
