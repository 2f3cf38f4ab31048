"""CPU time of other processes, from Linux's /proc. A busy machine changes it less than the wall time."""

from __future__ import annotations

import os
from pathlib import Path

TICKS = os.sysconf("SC_CLK_TCK")


def measure_cpu_seconds(root: int) -> float:
    """Return the CPU seconds of a process and its running descendants so far."""
    processes = dict(filter(None, map(read_stat, Path("/proc").glob("[0-9]*/stat"))))
    family = {root}
    while more := {pid for pid, (parent, _) in processes.items() if parent in family} - family:
        family |= more
    return sum(processes[pid][1] for pid in family if pid in processes)


def read_stat(stat: Path) -> tuple[int, tuple[int, float]] | None:
    """Return (process, (parent, CPU seconds)); None if it has just ended. See proc_pid_stat(5)."""
    try:
        words = stat.read_text().rpartition(")")[2].split()
    except OSError:
        return None
    return int(stat.parent.name), (int(words[1]), (int(words[11]) + int(words[12])) / TICKS)
