"""GPUs from `nvidia-smi`, for machines with NVIDIA's driver and without `nvidia-ml-py`.

`nvidia-smi --help-query-gpu` explains its fields.
"""

from __future__ import annotations

import csv
import re
import subprocess
from collections.abc import Sequence
from contextlib import suppress

from trainer.node.gpus import THROTTLE_REASONS, GpuError, GpuReading, select_visible_gpus
from trainer.protocol import Gpu

PROGRAM = "nvidia-smi"
TIMEOUT_SECONDS = 10  # without persistence mode every call loads the driver
STATIC_FIELDS = ("name", "uuid", "memory.total", "driver_version")
STATE_FIELDS = ("uuid", "memory.used", "temperature.gpu", "utilization.gpu")
THROTTLE_FIELDS = ("clocks_event_reasons.active", "clocks_throttle_reasons.active")
"""The same field for drivers since 535, and before."""
MEBIBYTE = 1 << 20


class SmiReader:
    """Raises `GpuError` if the program is missing or does not work."""

    def __init__(self) -> None:
        rows = query_table("gpu", STATIC_FIELDS)
        gpus = [
            Gpu(
                name=name[:80],
                uuid=uuid[:80],
                memory_bytes=int(parse_number(total) or 0) * MEBIBYTE,
                driver=driver[:40],
            )
            for name, uuid, total, driver in rows
        ]
        self.gpus = tuple(gpus[i] for i in select_visible_gpus(gpus))
        self.cuda = parse_cuda_version(run_smi())
        self._throttle_field: str | None = None
        for field in THROTTLE_FIELDS:
            with suppress(GpuError):
                query_table("gpu", (field,))
                self._throttle_field = field
                break

    def read_gpus(self) -> tuple[GpuReading, ...]:
        fields = (*STATE_FIELDS, *([self._throttle_field] if self._throttle_field else []))
        rows = {row[0]: row[1:] for row in query_table("gpu", fields)}
        processes = query_table("compute-apps", ("gpu_uuid", "pid"))
        try:
            return tuple(
                parse_reading(rows[gpu.uuid], [pid for uuid, pid in processes if uuid == gpu.uuid]) for gpu in self.gpus
            )
        except KeyError as error:
            raise GpuError(f"The GPU {error} of this node is gone.") from error


def parse_reading(row: Sequence[str], pids: Sequence[str]) -> GpuReading:
    used, temperature, busy, *reasons = row
    mebibytes = parse_number(used)
    return GpuReading(
        used_bytes=None if mebibytes is None else int(mebibytes) * MEBIBYTE,
        temperature_celsius=parse_number(temperature),
        throttled=any(re.fullmatch("0x[0-9a-fA-F]+", word) and int(word, 16) & THROTTLE_REASONS for word in reasons),
        busy_percent=parse_number(busy),
        processes=frozenset(int(pid) for pid in pids if pid.isdigit()),
    )


def query_table(subject: str, fields: Sequence[str]) -> list[list[str]]:
    """Return the rows of one query; raise `GpuError` for an unknown field or an incomplete row."""
    text = run_smi(f"--query-{subject}={','.join(fields)}", "--format=csv,noheader,nounits")
    rows = [[cell.strip() for cell in row] for row in csv.reader(text.splitlines()) if row]
    if any(len(row) != len(fields) for row in rows):
        raise GpuError(f"{PROGRAM} returned unexpected output.")
    return rows


def run_smi(*args: str) -> str:
    try:
        result = subprocess.run([PROGRAM, *args], capture_output=True, text=True, timeout=TIMEOUT_SECONDS, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise GpuError(f"{PROGRAM} does not work here: {error}.") from error
    if result.returncode != 0:
        lines = (result.stdout + result.stderr).strip().splitlines() or [f"exit code {result.returncode}"]
        raise GpuError(f"{PROGRAM} does not work here: {lines[0]}")
    return result.stdout


def parse_number(text: str) -> float | None:
    """Return a number; None for `[N/A]` and `[Not Supported]`."""
    return float(text) if re.fullmatch(r"-?\d+(\.\d+)?", text) else None


def parse_cuda_version(text: str) -> str:
    """Find the CUDA version in the header of `nvidia-smi`'s default output."""
    match = re.search(r"CUDA(?: UMD)? Version\s*:\s*(\d+\.\d+)", text)
    return match[1] if match else ""
