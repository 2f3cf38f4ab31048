"""Between two jobs of a lane nothing is left of the first: no process, no file, no memory of a GPU.

Done, and then looked at: the sandbox ends all processes of a job, and here none may be found that carries the job's
mark in its environment; the workspace may not exist; the lane's GPUs may hold no more than before, and no new process
may compute on them. Until that is so the lane takes no job, and says why.

Not covered: with the driver `none`, a process that has put off both its parents and its mark. GPU memory where the
driver does not tell it.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path

from trainer.node.gpu_monitor import GpuMonitor
from trainer.node.gpus import GpuError, GpuReading
from trainer.node.slots import Slot
from trainer.node.workspace import remove_folder

MARK_VARIABLE = "DAILYTRAIN_BOX"
"""A variable in the environment of every process of a job: `<the node's folder>:<lease>:`."""
PROC = Path("/proc")
CLEANUP_SECONDS = 20.0
"""What a driver may take to give back the memory of processes that are gone."""
LOOK_SECONDS = 0.25
SLACK_BYTES = 512 << 20
"""A desktop's windows come and go."""


def build_mark(home: Path, lease: int) -> str:
    return f"{home}:{lease}:"


def find_marked_processes(beginning: str) -> list[int]:
    """Return the processes that carry a mark which begins so."""
    wanted = f"{MARK_VARIABLE}={beginning}".encode()
    found = []
    for folder in PROC.iterdir() if PROC.is_dir() else ():
        with suppress(OSError):
            if folder.name.isdigit() and any(
                word.startswith(wanted) for word in (folder / "environ").read_bytes().split(b"\0")
            ):
                found.append(int(folder.name))
    return found


def kill_marked_processes(beginning: str) -> None:
    """Kill the processes that carry such a mark."""
    for pid in find_marked_processes(beginning):
        with suppress(ProcessLookupError, PermissionError):
            os.kill(pid, signal.SIGKILL)


class SlotCleanup:
    """Of one lane."""

    def __init__(self, home: Path, lane: Slot, vitals: GpuMonitor) -> None:
        self._home = home
        self._lane = lane
        self._vitals = vitals
        self._lease: int | None = None
        """The last one that was worked on here."""
        self._at_rest = self._quietly_read()

    def begin(self, lease: int) -> None:
        self._lease = lease

    def settle(self, stopped: Callable[[], bool]) -> str:
        """Clear away what the last job left; return why the lane may take no job, empty when all is as it was."""
        deadline = time.monotonic() + CLEANUP_SECONDS
        while (left := self.left_over()) and time.monotonic() < deadline and not stopped():
            time.sleep(LOOK_SECONDS)
        return left

    def left_over(self) -> str:
        """Try once more to clear away; return what is still there, in a sentence."""
        if self._lease is None:
            return ""
        return self._processes() or self._files() or self._memory()

    def _processes(self) -> str:
        assert self._lease is not None
        own = build_mark(self._home, self._lease)
        kill_marked_processes(own)
        if left := find_marked_processes(own):
            return f"Process {left[0]} of the last job cannot be ended."
        return ""

    def _files(self) -> str:
        """An empty folder may stay: it tells the next agent of a lease whose end nobody heard."""
        folder = self._home / "work" / str(self._lease)
        try:
            if folder.is_dir() and any(folder.iterdir()):
                remove_folder(folder)
        except OSError as error:
            return f"The last job's folder cannot be removed: {error.strerror or type(error).__name__}."
        return ""

    def _memory(self) -> str:
        try:
            now = self._mine(self._vitals.read())
        except GpuError as error:
            return str(error)
        for gpu, before, after in zip(self._lane.gpus, self._at_rest, now, strict=False):
            if sentence := describe_gpu_leftover(before, after):
                return f"{gpu.name} {sentence}"
        if len(self._at_rest) == len(now):
            self._at_rest = [pick_lower_usage(*pair) for pair in zip(self._at_rest, now, strict=True)]
        else:
            self._at_rest = now
        return ""

    def _quietly_read(self) -> list[GpuReading]:
        try:
            return self._mine(self._vitals.read())
        except GpuError:
            return []

    def _mine(self, readings: Sequence[GpuReading]) -> list[GpuReading]:
        pairs = zip(self._vitals.reader.gpus, readings, strict=False)
        return [reading for gpu, reading in pairs if gpu.uuid in self._lane.uuids]


def describe_gpu_leftover(before: GpuReading, now: GpuReading) -> str:
    """Return what a GPU holds that it did not hold at rest, as the rest of a sentence; empty if nothing."""
    more = (now.used_bytes or 0) - (before.used_bytes or 0)
    strangers = sorted(now.processes - before.processes)
    if before.used_bytes is not None and more > SLACK_BYTES:
        whose = f" (process {strangers[0]})" if strangers else ""
        return f"still holds {more / 1e9:.1f} GB{whose}: no job is taken until that is free."
    if strangers:
        return f"is in use by process {strangers[0]}: no job is taken until that has ended."
    return ""


def pick_lower_usage(before: GpuReading, now: GpuReading) -> GpuReading:
    """Of two moments at rest, the one with less in use."""
    return now if (now.used_bytes or 0) <= (before.used_bytes or 0) else before
