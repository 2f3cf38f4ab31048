"""Cleanup between two jobs of a slot: the first leaves no process, no file and no GPU memory.

After the sandbox has killed the job's processes, three conditions are checked: no process has the job's mark in its
environment; the workspace is removed; the slot's GPUs use no more memory than before the first job, and no new process
computes on them. Until all hold, the slot takes no job and reports why.

Not covered: with the driver `none`, a process that shed both its parents and its mark; GPU memory, where the driver
does not report it.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import psutil

from trainer.node.gpu_monitor import GpuMonitor
from trainer.node.gpus import GpuReading
from trainer.node.slots import Slot
from trainer.node.workspace import remove_folder

MARK_VARIABLE = "DAILYTRAIN_JOB"  # environment variable of every process of a job: `<the node's folder>:<lease>:`
CLEANUP_SECONDS = 20.0  # how long a driver may take to free the memory of dead processes
CHECK_SECONDS = 0.25
SLACK_BYTES = 512 << 20  # tolerance for the windows of a desktop


def build_mark(home: Path, lease: int) -> str:
    return f"{home}:{lease}:"


def iterate_marked_processes(prefix: str) -> Iterator[psutil.Process]:
    for process in psutil.process_iter(["environ"]):
        if (process.info["environ"] or {}).get(MARK_VARIABLE, "").startswith(prefix):
            yield process


def find_marked_processes(prefix: str) -> list[int]:
    """Return the ids of the processes whose mark begins with `prefix`."""
    return [process.pid for process in iterate_marked_processes(prefix)]


def kill_marked_processes(prefix: str) -> int:
    """Kill the processes whose mark begins with `prefix`; return how many there were."""
    count = 0
    for process in iterate_marked_processes(prefix):
        count += 1
        with suppress(psutil.Error):
            process.kill()
    return count


class SlotCleanup:
    def __init__(self, home: Path, slot: Slot, gpu_monitor: GpuMonitor) -> None:
        self._home = home
        self._slot = slot
        self._gpu_monitor = gpu_monitor
        self._lease: int | None = None  # the last lease of this slot
        self._baseline = self._read_slot_gpus()

    def set_lease(self, lease: int) -> None:
        self._lease = lease

    def clean_up_slot(self, should_stop: Callable[[], bool]) -> str:
        """Clean up after the last job, for up to `CLEANUP_SECONDS`; return what remains, "" if nothing does."""
        deadline = time.monotonic() + CLEANUP_SECONDS
        while (problem := self.clean_up_once()) and time.monotonic() < deadline and not should_stop():
            time.sleep(CHECK_SECONDS)
        return problem

    def clean_up_once(self) -> str:
        """Clean up once; return a sentence about what remains, "" if nothing does."""
        gpu_problem = self._gpu_monitor.find_problem(self._slot.uuids)
        if self._lease is None:
            return gpu_problem
        left = self._end_processes(self._lease) or self._remove_files(self._lease)
        return left or gpu_problem or self._check_gpu_memory()

    def _end_processes(self, lease: int) -> str:
        mark = build_mark(self._home, lease)
        if kill_marked_processes(mark) and (pids := find_marked_processes(mark)):
            return f"Process {pids[0]} of the last job cannot be ended."
        return ""

    def _remove_files(self, lease: int) -> str:
        """Remove the workspace. An empty folder stays: it marks a lease whose end the server does not know yet."""
        folder = self._home / "work" / str(lease)
        try:
            if folder.is_dir() and any(folder.iterdir()):
                remove_folder(folder)
        except OSError as error:
            return f"The last job's folder cannot be removed: {error.strerror or type(error).__name__}."
        return ""

    def _check_gpu_memory(self) -> str:
        now = self._read_slot_gpus()
        for gpu, before, after in zip(self._slot.gpus, self._baseline, now, strict=True):
            if leftover := describe_gpu_leftover(before, after):
                return f"{gpu.name} {leftover}"
        self._baseline = [pick_lower_usage(*pair) for pair in zip(self._baseline, now, strict=True)]
        return ""

    def _read_slot_gpus(self) -> list[GpuReading]:
        pairs = zip(self._gpu_monitor.reader.gpus, self._gpu_monitor.read_gpus(), strict=True)
        return [reading for gpu, reading in pairs if gpu.uuid in self._slot.uuids]


def describe_gpu_leftover(before: GpuReading, now: GpuReading) -> str:
    """Return the end of a sentence about memory or processes that a job left on a GPU; "" if there are none."""
    added_bytes = (now.used_bytes or 0) - (before.used_bytes or 0)
    new_processes = sorted(now.processes - before.processes)
    if before.used_bytes is not None and added_bytes > SLACK_BYTES:
        owner = f" (process {new_processes[0]})" if new_processes else ""
        return f"still holds {added_bytes / 1e9:.1f} GB{owner}: no job is taken until that is free."
    if new_processes:
        return f"is in use by process {new_processes[0]}: no job is taken until that has ended."
    return ""


def pick_lower_usage(before: GpuReading, now: GpuReading) -> GpuReading:
    """Return the reading with less memory in use; the later one if they are equal or the first has no number."""
    return now if before.used_bytes is None or (now.used_bytes or 0) <= (before.used_bytes or 0) else before
