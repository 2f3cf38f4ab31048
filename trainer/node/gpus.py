"""This machine's GPUs and their state, from NVML, the library of NVIDIA's driver. Each card is judged by itself.

Not covered: GPUs of other makers.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import psutil

from trainer.protocol import Gpu
from trainer.sandbox import gpu_devices
from trainer.sandbox.gpu_devices import read_driver_facts

THROTTLE_REASONS = 0x08 | 0x20 | 0x40 | 0x80
"""NVML's reasons for slower clocks that indicate a problem: hardware slowdown, heat (detected by software or hardware),
power brake. A power cap (0x04) is normal for a busy GPU."""


@dataclass(frozen=True)
class GpuReading:
    """The current state of one GPU. None: its driver does not report it."""

    used_bytes: int | None = None
    temperature_celsius: float | None = None
    throttled: bool = False
    busy_percent: float | None = None  # share of the last fraction of a second in which a kernel ran
    processes: frozenset[int] = frozenset()  # ids of the processes that compute on it, as the driver sees them
    problem: str = ""  # why it cannot be used now: the end of a sentence; empty if it can


class GpuReader(Protocol):
    """One source of GPU data. The GPUs are listed once; their state is read by each `read_gpus`."""

    gpus: tuple[Gpu, ...]  # those that jobs may use
    unusable_gpus: tuple[Gpu, ...]  # the others, each with its `problem`
    cuda: str  # the newest CUDA version that the driver supports, such as "12.4"

    def read_gpus(self) -> tuple[GpuReading, ...]:
        """Return one reading for each of `gpus`, in their order."""


class UnreadableGpuReader:
    """GPUs that the driver lists in /proc, where NVML does not work. No job may use them. By default there are none."""

    def __init__(self, problem: str = "") -> None:
        """`problem`: why NVML does not work, in a sentence; empty on a machine without a GPU."""
        self.gpus: tuple[Gpu, ...] = ()
        self.cuda = ""
        facts = (read_driver_facts() or [{}]) if problem else []
        self.unusable_gpus = tuple(
            Gpu(name=gpu.get("Model", "NVIDIA GPU")[:80], uuid=gpu.get("GPU UUID", "")[:80], problem=problem[:300])
            for gpu in facts
        )

    def read_gpus(self) -> tuple[GpuReading, ...]:
        return ()


def select_visible_gpus(gpus: Sequence[Gpu], environment: Mapping[str, str] = os.environ) -> list[int]:
    """Return the indices of the lent GPUs: all, or those in the agent's own CUDA_VISIBLE_DEVICES.

    It lists UUIDs, their prefixes, or indices. As in CUDA, an invalid entry ends the list.
    """
    variable = environment.get("CUDA_VISIBLE_DEVICES")
    if variable is None:
        return list(range(len(gpus)))
    found: list[int] = []
    for entry in map(str.strip, variable.split(",")):
        is_uuid = entry.startswith("GPU-")
        matches = [i for i, gpu in enumerate(gpus) if entry == str(i) or (is_uuid and gpu.uuid.startswith(entry))]
        if len(matches) != 1 or matches[0] in found:
            break
        found += matches
    return found


CONTROL = Path("/dev/nvidiactl")
PCI_DEVICES = Path("/sys/bus/pci/devices")
NO_DRIVER = "NVIDIA's driver is not loaded here. In a container, give it the GPUs (--gpus all)."
NOT_LENT = "It is not lent: CUDA_VISIBLE_DEVICES does not list it."
IS_SPLIT = "MIG splits it, and jobs need a whole GPU. `nvidia-smi -mig 0` ends that."


def open_gpu_reader() -> GpuReader:
    """Return the reader of this machine. Without a driver `pynvml` is not imported, so the node starts quickly."""
    if not (gpu_devices.DRIVER.is_dir() or CONTROL.exists() or shutil.which("nvidia-smi")):
        return UnreadableGpuReader(NO_DRIVER if has_nvidia_gpu() else "")
    import pynvml

    try:
        return NvmlReader(pynvml)
    except pynvml.NVMLError as error:
        return UnreadableGpuReader(f"NVIDIA's driver does not answer ({error}).")


def has_nvidia_gpu() -> bool:
    """Return whether the PCI bus has a display controller of NVIDIA, with or without its driver."""
    for vendor in PCI_DEVICES.glob("*/vendor"):
        kind = vendor.with_name("class").read_text()
        if vendor.read_text().strip() == "0x10de" and kind.startswith("0x03"):
            return True
    return False


class NvmlReader:
    def __init__(self, nvml: Any) -> None:
        """`nvml`: the module `pynvml`, whose functions are thread-safe. Raises its `NVMLError` if nothing works."""
        self._nvml = nvml
        nvml.nvmlInit()
        driver = decode_text(self._query(nvml.nvmlSystemGetDriverVersion) or "")[:40]
        found = [self._describe(index, driver) for index in range(nvml.nvmlDeviceGetCount())]
        visible = select_visible_gpus([gpu for gpu, _ in found])
        usable = [index for index in visible if found[index][0].problem is None]
        self.gpus = tuple(found[index][0] for index in usable)
        self._handles = [found[index][1] for index in usable]
        self.unusable_gpus = tuple(
            gpu if index in visible else gpu.model_copy(update={"problem": NOT_LENT})
            for index, (gpu, _) in enumerate(found)
            if index not in usable
        )
        self.cuda = format_cuda_version(self._query(nvml.nvmlSystemGetCudaDriverVersion_v2))

    def _describe(self, index: int, driver: str) -> tuple[Gpu, Any]:
        """Return what is known about one card, and its handle. With a problem that any query has, no job may use it."""
        nvml = self._nvml
        facts: dict[str, Any] = {"name": f"GPU {index}", "driver": driver}
        handle = None
        try:
            handle = nvml.nvmlDeviceGetHandleByIndex(index)
            facts["name"] = decode_text(nvml.nvmlDeviceGetName(handle))[:80]
            facts["uuid"] = decode_text(nvml.nvmlDeviceGetUUID(handle))[:80]
            memory = self._read_memory(handle)
            # Unified memory: NVML has no number for it, because it is the machine's.
            facts["memory_bytes"] = memory.total if memory and memory.total else psutil.virtual_memory().total
            mode = self._query(nvml.nvmlDeviceGetMigMode, handle)
            if mode is not None and mode[0] == nvml.NVML_DEVICE_MIG_ENABLE:
                facts["problem"] = IS_SPLIT
        except nvml.NVMLError as error:
            facts["problem"] = f"It does not answer ({error})."[:300]
        return Gpu(**facts), handle

    def _read_memory(self, handle: Any) -> Any:
        """Return total and used bytes; None for unified memory. Raise `NVMLError` for a GPU that has been lost."""
        try:
            return self._nvml.nvmlDeviceGetMemoryInfo(handle)
        except self._nvml.NVMLError as error:
            if error.value == self._nvml.NVML_ERROR_NOT_SUPPORTED:
                return None
            raise

    def read_gpus(self) -> tuple[GpuReading, ...]:
        return tuple(self._read_gpu(handle) for handle in self._handles)

    def _read_gpu(self, handle: Any) -> GpuReading:
        nvml = self._nvml
        try:
            memory = self._read_memory(handle)
        except nvml.NVMLError as error:
            return GpuReading(problem=f"does not answer ({error}).")
        rates = self._query(nvml.nvmlDeviceGetUtilizationRates, handle)
        return GpuReading(
            used_bytes=memory.used if memory and memory.total else None,
            temperature_celsius=self._query(nvml.nvmlDeviceGetTemperature, handle, nvml.NVML_TEMPERATURE_GPU),
            throttled=bool((self._read_throttle_reasons(handle) or 0) & THROTTLE_REASONS),
            busy_percent=None if rates is None else rates.gpu,
            processes=frozenset(
                process.pid for process in self._query(nvml.nvmlDeviceGetComputeRunningProcesses, handle) or ()
            ),
        )

    def _read_throttle_reasons(self, handle: Any) -> int | None:
        """Return the reasons for slower clocks; drivers before 535 have only the older function."""
        nvml = self._nvml
        found: int | None = self._query(nvml.nvmlDeviceGetCurrentClocksEventReasons, handle)
        return self._query(nvml.nvmlDeviceGetCurrentClocksThrottleReasons, handle) if found is None else found

    def _query(self, function: Callable[..., Any], *arguments: Any) -> Any:
        """Return the function's result; None if this GPU or driver does not support it."""
        try:
            return function(*arguments)
        except self._nvml.NVMLError:
            return None


def decode_text(value: str | bytes) -> str:
    """Decode what older versions of the package return as bytes."""
    return value.decode(errors="replace") if isinstance(value, bytes) else value


def format_cuda_version(number: int | None) -> str:
    """Format NVML's number: 12040 is 12.4."""
    return "" if number is None else f"{number // 1000}.{number % 1000 // 10}"
