"""GPUs for tests: NVML's module with the names, types and errors of `nvidia-ml-py`, and a program `nvidia-smi`."""

from __future__ import annotations

import stat
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

GIB = 1 << 30


@dataclass
class Card:
    """One GPU with values set by a test."""

    name: str = "NVIDIA GeForce RTX 3090"
    uuid: str = "GPU-6f3c0a5e-8f5a-4b0e-9f34-000000000000"
    total: int = 24 * GIB
    used: int = 300 << 20
    temperature: int | None = 41
    reasons: int = 0x1
    busy: int = 0
    pids: list[int] = field(default_factory=list)


def pair(**fields: Any) -> list[Card]:
    return [Card(uuid=f"GPU-0000000{number}-aaaa-bbbb-cccc-dddddddddddd", **fields) for number in range(2)]


class NVMLError(Exception):
    """The exception of pynvml, with an error number."""

    def __init__(self, value: int) -> None:
        super().__init__({3: "Not Supported", 13: "Function Not Found", 15: "GPU is lost"}[value])
        self.value = value


class Nvml:
    """The part of the module `pynvml` that the agent uses."""

    NVMLError = NVMLError
    NVML_TEMPERATURE_GPU = 0

    def __init__(self, cards: list[Card], cuda: int = 12040, old_driver: bool = False) -> None:
        self.cards = cards
        self.lost = False
        self._cuda = cuda
        self._old = old_driver

    def nvmlInit(self) -> None: ...

    def nvmlDeviceGetCount(self) -> int:
        return len(self.cards)

    def nvmlDeviceGetHandleByIndex(self, index: int) -> Any:
        return SimpleNamespace(card=self.cards[index])

    def nvmlSystemGetDriverVersion(self) -> str:
        return "550.54.15"

    def nvmlSystemGetCudaDriverVersion_v2(self) -> int:
        return self._cuda

    def nvmlDeviceGetName(self, handle: Any) -> str:
        return str(handle.card.name)

    def nvmlDeviceGetUUID(self, handle: Any) -> str:
        return str(handle.card.uuid)

    def nvmlDeviceGetMemoryInfo(self, handle: Any) -> Any:
        if self.lost:
            raise NVMLError(15)
        card = handle.card
        return SimpleNamespace(total=card.total, used=card.used, free=card.total - card.used)

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


SMI = """#!/bin/sh
cd {folder}
case "$1" in
  --query-gpu=*{unknown}*) echo 'Field "{unknown}" is not a valid field to query.'; exit 2;;
  --query-gpu=name,*) cat what.csv;;
  --query-gpu=uuid,*) cat how.csv;;
  --query-gpu=clocks*) cat reasons.csv;;
  --query-compute-apps=*) cat apps.csv;;
  "") cat page.txt;;
  *) echo "Invalid combination of input arguments."; exit 1;;
esac
"""
PAGE = """Tue Mar  5 21:04:11 2024
+-----------------------------------------------------------------------------------------+
| NVIDIA-SMI 550.54.15              Driver Version: 550.54.15      CUDA Version: 12.4     |
|-----------------------------------------+------------------------+----------------------+
"""


class Smi:
    """A program `nvidia-smi` in a folder, with the real one's output for `--format=csv,noheader,nounits`."""

    def __init__(self, folder: Path, cards: list[Card], unknown: str = "no.such.field") -> None:
        self._folder = folder
        self.cards = cards
        folder.mkdir()
        program = folder / "nvidia-smi"
        program.write_text(SMI.format(folder=folder, unknown=unknown))
        program.chmod(program.stat().st_mode | stat.S_IXUSR)
        (folder / "page.txt").write_text(PAGE)
        self.write()

    def write(self) -> None:
        """Write the output for the current values of the cards."""
        what = [f"{card.name}, {card.uuid}, {card.total >> 20}, 550.54.15" for card in self.cards]
        reasons = [f"0x{card.reasons:016x}" for card in self.cards]
        how = [
            f"{card.uuid}, {card.used >> 20}, {'[N/A]' if card.temperature is None else card.temperature}, {card.busy}"
            f", {reason}"
            for card, reason in zip(self.cards, reasons, strict=True)
        ]
        apps = [f"{card.uuid}, {pid}" for card in self.cards for pid in card.pids]
        for name, lines in {"what": what, "how": how, "reasons": reasons, "apps": apps}.items():
            aside = self._folder / f"{name}.partial"
            aside.write_text("".join(f"{line}\n" for line in lines))
            aside.replace(self._folder / f"{name}.csv")
