"""Choose how to read this machine's GPUs: NVML, `nvidia-smi`, or names only."""

from __future__ import annotations

import shutil
from contextlib import suppress

from trainer.node import gpus, gpus_nvml, gpus_smi
from trainer.sandbox import gpu_devices


def open_gpu_reader() -> gpus.GpuReader:
    """Return the best reader that works here. Without a driver `pynvml` is not imported, so the node starts quickly."""
    if gpu_devices.DRIVER.is_dir() or gpus.CONTROL.exists() or shutil.which("nvidia-smi"):
        for open_reader in (gpus_nvml.open_nvml_reader, gpus_smi.SmiReader):
            with suppress(gpus.GpuError):
                return open_reader()
    return gpus.ProcGpuReader()
