"""CPU cores of this process: how many it may use, how many others leave idle, and how threads wait for each other."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping, MutableMapping

WAIT_VARIABLES = ("GOMP_SPINCOUNT", "OMP_WAIT_POLICY")
"""Variables of libgomp, torch's OpenMP library on Linux, that say how long a thread spins before it sleeps."""
SPIN_COUNT = "1000"
"""Instead of libgomp's 300,000. What it costs and gains: benchmarks/results/training-speed.md."""
MEASURE_SECONDS = 0.5
PARTLY_IDLE = 0.25  # a core that is idle for more than this counts: a thread too many costs less than one too few


def count_cores() -> int:
    """Return the CPU cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def limit_spinning(environment: MutableMapping[str, str]) -> None:
    """Let OpenMP threads sleep soon when they wait, unless the user chose. Takes effect if set before torch is loaded.

    Otherwise a thread that waits for one whose core another program uses keeps that core busy, too.
    """
    if not any(name in environment for name in WAIT_VARIABLES):
        environment["GOMP_SPINCOUNT"] = SPIN_COUNT


def choose_thread_count(limit: int | None = None) -> int:
    """Return how many threads compute on this CPU: OMP_NUM_THREADS, else one for each idle core; at most `limit`."""
    limit = count_cores() if limit is None else limit
    if (chosen := os.environ.get("OMP_NUM_THREADS", "")).isdecimal():
        return max(1, min(limit, int(chosen)))
    return limit if limit == 1 else min(limit, count_idle_cores(measure_busy_shares()))


def measure_busy_shares() -> dict[int, float]:
    """Return the share of the time that each core of this process was busy, measured for `MEASURE_SECONDS`."""
    import psutil  # here, since `dailytrain --help` needs none

    percents = psutil.cpu_percent(MEASURE_SECONDS, percpu=True)
    usable = os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else range(len(percents))
    return {number: percents[number] / 100 for number in usable if number < len(percents)}


def count_idle_cores(busy_shares: Mapping[int, float]) -> int:
    """Return the idle cores, from the share of the time that each was busy; at least 1."""
    idle = sum(1 - share for share in busy_shares.values())
    return max(1, math.ceil(idle - PARTLY_IDLE))
