"""How the machine is, for the site and for the sponsor. One for the whole agent; lanes ask it from their threads."""

from __future__ import annotations

import threading
import time

from trainer.node.console import say
from trainer.node.gpus import GpuError, GpuReader, GpuReading
from trainer.protocol import Health, ProbeReading

IDLE_SECONDS = 300.0
"""A job that computes nothing on its GPUs for so long is noticed. To load data and to compile takes less."""
FRESH_SECONDS = 0.2
BUSY_PERCENT = 5.0
"""Less is what a desktop alone does."""


class GpuMonitor:
    def __init__(self, reader: GpuReader) -> None:
        self.reader = reader
        self.probe: ProbeReading | None = None
        """The latest on this machine."""
        self._idle_since: dict[int, float] = {}
        """Of lanes whose job computes nothing at present."""
        self._idle: set[int] = set()
        """Lanes for which that has lasted."""
        self._said: dict[str, bool] = {}
        self._lock = threading.Lock()
        self._readings: tuple[GpuReading, ...] = ()
        self._read_at = float("-inf")

    def read(self) -> tuple[GpuReading, ...]:
        """Return one reading for each GPU of the machine, as `Reader.read`; raise `GpuError`."""
        with self._lock:  # many lanes: one look is enough for all
            if time.monotonic() - self._read_at > FRESH_SECONDS:
                self._readings, self._read_at = self.reader.read(), time.monotonic()
            return self._readings

    def health(self, trouble: str = "") -> Health:
        """Return what the site is told. A driver that does not answer is trouble of its own."""
        try:
            readings = self.read()
        except GpuError as error:
            readings, trouble = (), trouble or str(error)
        used = [one.used_bytes for one in readings if one.used_bytes is not None]
        warm = [one.temperature_celsius for one in readings if one.temperature_celsius is not None]
        throttled = any(one.throttled for one in readings)
        self._once("throttled", throttled, "A GPU is too hot, or its power supply too weak: it is slowed down.")
        return Health(
            temperature_celsius=max(warm, default=None),
            throttled=throttled,
            gpu_used_bytes=sum(used) if used else None,
            idle_gpu=bool(self._idle),
            probe=self.probe,
            trouble=trouble[:300],
        )

    def watch(self, lane: int, gpus: tuple[str, ...], running: bool, now: float | None = None) -> None:
        """Look whether a lane's job uses its GPUs (by UUID); told at every heartbeat. Not running: nothing to see."""
        now = time.monotonic() if now is None else now
        idle = running and self._all_idle(gpus)
        if not idle:
            self._idle_since.pop(lane, None)
        since = self._idle_since.setdefault(lane, now) if idle else now
        (self._idle.add if now - since >= IDLE_SECONDS else self._idle.discard)(lane)
        sentence = f"The job's GPU has had nothing to do for {IDLE_SECONDS / 60:.0f} minutes."
        self._once(f"idle {lane}", lane in self._idle, sentence)

    def _all_idle(self, gpus: tuple[str, ...]) -> bool:
        try:
            readings = self.read()
        except GpuError:
            return False
        mine = [one for gpu, one in zip(self.reader.gpus, readings, strict=False) if gpu.uuid in gpus]
        return bool(mine) and all(one.busy_percent is not None and one.busy_percent < BUSY_PERCENT for one in mine)

    def _once(self, what: str, there: bool, sentence: str) -> None:
        """Tell the sponsor when it begins, not again while it lasts."""
        if there and not self._said.get(what):
            say(sentence, "yellow")
        self._said[what] = there
