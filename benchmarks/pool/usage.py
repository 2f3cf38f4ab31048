"""CPU time of other processes, from Linux's /proc: what a busy machine adds to the clock it adds much less to this."""

from __future__ import annotations

import os
from pathlib import Path

TICKS = os.sysconf("SC_CLK_TCK")


def cpu_seconds(root: int) -> float:
    """Return the CPU seconds so far of a process and of all that it has begun and that still run."""
    facts = dict(filter(None, map(fact, Path("/proc").glob("[0-9]*/stat"))))
    family = {root}
    while more := {pid for pid, (parent, _) in facts.items() if parent in family} - family:
        family |= more
    return sum(facts[pid][1] for pid in family if pid in facts)


def fact(stat: Path) -> tuple[int, tuple[int, float]] | None:
    """Return (process, (its parent, its CPU seconds)); None where it has just ended. See proc_pid_stat(5)."""
    try:
        words = stat.read_text().rpartition(")")[2].split()
    except OSError:
        return None
    return int(stat.parent.name), (int(words[1]), (int(words[11]) + int(words[12])) / TICKS)
