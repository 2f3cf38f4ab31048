"""Calls of the GPU's API. Only this module calls `torch.cuda`; kernels of attention are in `ops/attention.py`.

Under ROCm torch serves AMD's GPUs through the same calls, so another kind of GPU needs changes here only. ROCm has not
been tried.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

FP8_CAPABILITY = (8, 9)  # Ada, Hopper and newer


def is_gpu_available() -> bool:
    return torch.cuda.is_available()


def count_gpus() -> int:
    return torch.cuda.device_count()


def get_gpu_name(device: torch.device | None = None) -> str:
    """Return the model's name; of the current GPU by default."""
    return torch.cuda.get_device_name(device)


def get_gpu_memory_bytes(device: torch.device | int = 0) -> int:
    """Return a GPU's whole memory."""
    return int(torch.cuda.get_device_properties(device).total_memory)


def get_free_gpu_memory_bytes(device: torch.device) -> int:
    return torch.cuda.mem_get_info(device)[0]


def get_peak_gpu_memory_bytes(device: torch.device) -> int:
    """Return the most bytes that torch has allocated so far."""
    return torch.cuda.max_memory_allocated(device)


def is_nvidia() -> bool:
    """Return whether torch was built for NVIDIA's GPUs: elsewhere a capability means something else."""
    return torch.version.hip is None


def get_generation(device: torch.device | None = None) -> int:
    """Return the major compute capability of an NVIDIA GPU (9: Hopper), 0 of another."""
    return torch.cuda.get_device_capability(device)[0] if is_nvidia() else 0


def has_bf16() -> bool:
    """Return whether the GPU multiplies in bf16 without emulation."""
    return torch.cuda.is_bf16_supported(including_emulation=False)


def has_fp8() -> bool:
    return is_nvidia() and torch.cuda.get_device_capability() >= FP8_CAPABILITY


def synchronize(device: torch.device) -> None:
    """Wait for the GPU; return at once on a CPU."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def allocate_pinned(count: int) -> Tensor:
    """Return bytes of main memory that a GPU can write to directly; of other memory if they cannot be pinned."""
    try:
        return torch.empty(count, dtype=torch.uint8, pin_memory=True)
    except RuntimeError:
        return torch.empty(count, dtype=torch.uint8)


class DeferredRead:
    """The numbers of a tensor, which a GPU sends while it goes on with what it was given since."""

    def __init__(self, tensor: Tensor) -> None:
        self.values, self.arrival = tensor, None
        if tensor.device.type == "cuda":
            memory = allocate_pinned(tensor.nbytes).view(tensor.dtype).view(tensor.shape)
            self.values, self.arrival = memory.copy_(tensor, non_blocking=True), torch.cuda.Event()
            self.arrival.record()

    def read(self) -> Any:
        """Wait for the numbers and return them as `tolist` does."""
        if self.arrival is not None:
            self.arrival.synchronize()
        return self.values.tolist()


def build_on_device(values: Sequence[float], device: torch.device) -> Tensor:
    """Return numbers as a tensor `[N]` in fp32. They go to a GPU with the kernels that write them: for a copy from main
    memory the CPU would wait until the GPU has done all it was given before."""
    return torch.stack([torch.full((), value, dtype=torch.float32, device=device) for value in values])


def release_cached_memory(device: torch.device) -> None:
    """Return memory that torch keeps for itself to the GPU."""
    if device.type == "cuda":
        torch.cuda.empty_cache()


# --- freed memory -----------------------------------------------------------------------------------------------------
# Tensors of hundreds of megabytes come and go in every step. By default glibc returns them each time, and the kernel
# clears the pages again: a fifth of a small model's CPU time (depth 4), a tenth to a quarter of a micro-batch's at
# width 1024. The process keeps until its end what its largest step needs.


TRIM_THRESHOLD, MMAP_THRESHOLD, MMAP_MAX, ARENA_MAX = -1, -3, -4, -8
"""Options of mallopt(3)."""


def keep_freed_memory(*, single_arena: bool = False) -> None:
    """Configure malloc for this process. Does nothing without glibc.

    `single_arena`: all threads share one heap, and allocations above 32 MiB, glibc's maximum, are mapped apart.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is None:
        return
    options = {MMAP_THRESHOLD: 2**25, ARENA_MAX: 1} if single_arena else {MMAP_MAX: 0}
    for option, value in {TRIM_THRESHOLD: 2**31 - 1, **options}.items():
        mallopt(option, value)


# --- torch.compile ----------------------------------------------------------------------------------------------------


def raise_recompile_limit(limit: int) -> None:
    """Let a function be compiled for `limit` kinds of arguments; torch's own limit is 8. For the whole process, since
    the argument of `torch.compile` is newer than 2.11."""
    import torch._dynamo  # 2 s: only where something is compiled

    torch._dynamo.config.recompile_limit = max(limit, torch._dynamo.config.recompile_limit)


def get_row_gradients(parameter: Tensor) -> Any:
    """Return where the gradient of a table of n-grams is (`ngram_memory.RowGradients`), None for other parameters."""
    return getattr(parameter, "row_gradients", None)
