"""The state of the machine's GPUs, for the site and for the sponsor. One monitor per agent, shared by its slots."""

from __future__ import annotations

import threading
import time

from trainer.node.console import log
from trainer.node.gpus import GpuReader, GpuReading
from trainer.protocol import Health, ProbeReading

IDLE_SECONDS = 300.0
"""A job that uses no GPU for this long is reported as idle. Loading data and compiling take less."""
CACHE_SECONDS = 0.2
BUSY_PERCENT = 5.0  # a desktop alone causes less load


class GpuMonitor:
    def __init__(self, reader: GpuReader) -> None:
        self.reader = reader
        self.probe: ProbeReading | None = None  # the latest speed probe on this machine
        self._idle_since: dict[int, float] = {}  # by slot, of jobs that compute nothing at present
        self._idle_slots: set[int] = set()  # slots idle for `IDLE_SECONDS`
        self._active_warnings: dict[str, bool] = {}
        self._lock = threading.Lock()
        self._readings: tuple[GpuReading, ...] = ()
        self._read_at = float("-inf")

    def read_gpus(self) -> tuple[GpuReading, ...]:
        """Return one reading per GPU, at most `CACHE_SECONDS` old."""
        with self._lock:
            if time.monotonic() - self._read_at > CACHE_SECONDS:
                self._readings, self._read_at = self.reader.read_gpus(), time.monotonic()
            return self._readings

    def build_health(self, trouble: str = "") -> Health:
        """Return the report for the site. `trouble`: why the slot takes no job."""
        readings = self.read_gpus()
        used = [reading.used_bytes for reading in readings if reading.used_bytes is not None]
        temperatures = [gpu.temperature_celsius for gpu in readings if gpu.temperature_celsius is not None]
        is_throttled = any(reading.throttled for reading in readings)
        self._warn_once("throttled", is_throttled, "A GPU is too hot, or its power supply too weak: it is slowed down.")
        return Health(
            temperature_celsius=max(temperatures, default=None),
            throttled=is_throttled,
            gpu_used_bytes=sum(used) if used else None,
            idle_gpu=bool(self._idle_slots),
            probe=self.probe,
            trouble=trouble[:300],
        )

    def find_problem(self, gpus: tuple[str, ...]) -> str:
        """Return a sentence about the first of these GPUs (by UUID) that cannot be used now; "" if all can."""
        pairs = zip(self.reader.gpus, self.read_gpus(), strict=True)
        return next((f"{gpu.name} {now.problem}" for gpu, now in pairs if gpu.uuid in gpus and now.problem), "")

    def update_idle(self, slot: int, gpus: tuple[str, ...], is_running: bool, now: float | None = None) -> None:
        """Record at every heartbeat whether a slot's job uses its GPUs (by UUID)."""
        now = time.monotonic() if now is None else now
        is_idle = is_running and self._are_all_idle(gpus)
        if not is_idle:
            self._idle_since.pop(slot, None)
        since = self._idle_since.setdefault(slot, now) if is_idle else now
        if now - since >= IDLE_SECONDS:
            self._idle_slots.add(slot)
        else:
            self._idle_slots.discard(slot)
        message = f"The job's GPU has had nothing to do for {IDLE_SECONDS / 60:.0f} minutes."
        self._warn_once(f"idle {slot}", slot in self._idle_slots, message)

    def _are_all_idle(self, gpus: tuple[str, ...]) -> bool:
        pairs = zip(self.reader.gpus, self.read_gpus(), strict=True)
        busy = [reading.busy_percent for gpu, reading in pairs if gpu.uuid in gpus]
        return bool(busy) and all(percent is not None and percent < BUSY_PERCENT for percent in busy)

    def _warn_once(self, topic: str, is_active: bool, message: str) -> None:
        """Log a warning when it begins, and not again while it lasts."""
        if is_active and not self._active_warnings.get(topic):
            log.warning(message)
        self._active_warnings[topic] = is_active
