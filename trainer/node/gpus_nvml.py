"""GPUs from NVML, the library of NVIDIA's driver, through `nvidia-ml-py` (extra `gpu`)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from trainer.node.gpus import THROTTLE_REASONS, GpuError, GpuReader, GpuReading, select_visible_gpus
from trainer.protocol import Gpu


def open_nvml_reader() -> GpuReader:
    """Raise `GpuError` where the package or the library is missing, or does not work."""
    try:
        import pynvml
    except ImportError as error:
        raise GpuError("The package nvidia-ml-py is not installed.") from error
    return NvmlReader(pynvml)


class NvmlReader:
    def __init__(self, nvml: Any) -> None:
        """`nvml`: the module `pynvml`. Its functions are thread-safe."""
        self._nvml = nvml
        try:
            nvml.nvmlInit()
            handles = [nvml.nvmlDeviceGetHandleByIndex(number) for number in range(nvml.nvmlDeviceGetCount())]
            driver = decode_text(nvml.nvmlSystemGetDriverVersion())
            gpus = [self._describe(handle, driver) for handle in handles]
        except nvml.NVMLError as error:
            raise GpuError(f"NVML does not work here: {error}.") from error
        visible = select_visible_gpus(gpus)
        self._handles = [handles[i] for i in visible]
        self.gpus = tuple(gpus[i] for i in visible)
        self.cuda = format_cuda_version(self._query(nvml.nvmlSystemGetCudaDriverVersion_v2))

    def _describe(self, handle: Any, driver: str) -> Gpu:
        nvml = self._nvml
        return Gpu(
            name=decode_text(nvml.nvmlDeviceGetName(handle))[:80],
            memory_bytes=nvml.nvmlDeviceGetMemoryInfo(handle).total,
            driver=driver[:40],
            uuid=decode_text(nvml.nvmlDeviceGetUUID(handle))[:80],
        )

    def read_gpus(self) -> tuple[GpuReading, ...]:
        try:
            return tuple(self._read_gpu(handle) for handle in self._handles)
        except self._nvml.NVMLError as error:
            raise GpuError(f"The GPUs of this node do not answer ({error}).") from error

    def _read_gpu(self, handle: Any) -> GpuReading:
        nvml = self._nvml
        rates = self._query(nvml.nvmlDeviceGetUtilizationRates, handle)
        return GpuReading(
            used_bytes=nvml.nvmlDeviceGetMemoryInfo(handle).used,  # raises for a GPU that has been lost
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
