"""GPUs for tests: NVML's module with the names, types and errors of `nvidia-ml-py`."""

from __future__ import annotations

from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

GIB = 1 << 30


@dataclass
class Card:
    """One GPU with values set by a test."""

    name: str = "NVIDIA GeForce RTX 3090"
    uuid: str = "GPU-6f3c0a5e-8f5a-4b0e-9f34-000000000000"
    total: int | None = 24 * GIB  # None: unified memory, for which NVML has no number
    used: int = 300 << 20
    temperature: int | None = 41
    reasons: int = 0x1
    busy: int = 0
    pids: list[int] = field(default_factory=list)
    error: int | None = None  # number of the error that every query of it has
    is_split: bool = False  # by MIG


def pair(**fields: Any) -> list[Card]:
    return [Card(uuid=f"GPU-0000000{number}-aaaa-bbbb-cccc-dddddddddddd", **fields) for number in range(2)]


class NVMLError(Exception):
    """The exception of pynvml, with an error number."""

    def __init__(self, value: int) -> None:
        texts = {
            3: "Not Supported",
            13: "Function Not Found",
            14: "Corrupted infoROM",
            15: "GPU is lost",
            999: "Unknown Error",
        }
        super().__init__(texts[value])
        self.value = value


class Nvml:
    """The part of the module `pynvml` that the agent uses."""

    NVMLError = NVMLError
    NVML_TEMPERATURE_GPU = 0
    NVML_ERROR_NOT_SUPPORTED = 3
    NVML_DEVICE_MIG_ENABLE = 1

    def __init__(self, cards: list[Card], cuda: int = 12040, old_driver: bool = False) -> None:
        self.cards = cards
        self._cuda = cuda
        self._old = old_driver

    def nvmlInit(self) -> None: ...

    def nvmlDeviceGetCount(self) -> int:
        return len(self.cards)

    def nvmlDeviceGetHandleByIndex(self, index: int) -> Any:
        card = self.cards[index]
        if card.error is not None:
            raise NVMLError(card.error)
        return SimpleNamespace(card=card)

    def nvmlSystemGetDriverVersion(self) -> str:
        return "550.54.15"

    def nvmlSystemGetCudaDriverVersion_v2(self) -> int:
        return self._cuda

    def nvmlDeviceGetName(self, handle: Any) -> str:
        return str(handle.card.name)

    def nvmlDeviceGetUUID(self, handle: Any) -> str:
        return str(handle.card.uuid)

    def nvmlDeviceGetMemoryInfo(self, handle: Any) -> Any:
        card = handle.card
        if card.error is not None or card.total is None:
            raise NVMLError(card.error or 3)
        return SimpleNamespace(total=card.total, used=card.used, free=card.total - card.used)

    def nvmlDeviceGetMigMode(self, handle: Any) -> list[int]:
        if not handle.card.is_split:
            raise NVMLError(3)
        return [1, 1]

    def nvmlDeviceGetTemperature(self, handle: Any, sensor: int) -> int:
        assert sensor == self.NVML_TEMPERATURE_GPU
        if handle.card.temperature is None:
            raise NVMLError(3)
        return int(handle.card.temperature)

    def nvmlDeviceGetCurrentClocksEventReasons(self, handle: Any) -> int:
        if self._old:
            raise NVMLError(13)
        return int(handle.card.reasons)

    def nvmlDeviceGetCurrentClocksThrottleReasons(self, handle: Any) -> int:
        return int(handle.card.reasons)

    def nvmlDeviceGetUtilizationRates(self, handle: Any) -> Any:
        return SimpleNamespace(gpu=handle.card.busy, memory=0)

    def nvmlDeviceGetComputeRunningProcesses(self, handle: Any) -> list[Any]:
        return [SimpleNamespace(pid=pid, usedGpuMemory=None, gpuInstanceId=0xFFFFFFFF) for pid in handle.card.pids]
