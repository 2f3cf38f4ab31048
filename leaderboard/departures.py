"""When will what waits leave? An estimate from budgets, in the order of the queue."""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from leaderboard.models import Run


@dataclass(frozen=True)
class Departure:
    """A line of the timetable."""

    run: Run
    leaves_at: datetime | None
    """None where nobody can say: it waits for approval, or no node is online."""
    reason: str


def departures(waiting: Sequence[Run], live: Sequence[Run], nodes: int, now: datetime) -> list[Departure]:
    """Return a line for each waiting run. Every node counts as fit for every run, which is a guess."""
    busy = [now + timedelta(seconds=run.seconds_left or 0) for run in live]
    free = sorted([*busy, *[now] * max(nodes - len(busy), 0)])[: max(nodes, 0)]
    lines = []
    for run in waiting:
        leaves_at = None
        if run.state == Run.State.QUEUED and free:
            leaves_at = heapq.heappop(free)
            heapq.heappush(free, leaves_at + timedelta(seconds=run.expected_seconds))
        lines.append(Departure(run, leaves_at, why(run, nodes, leaves_at, now)))
    return lines


def why(run: Run, nodes: int, leaves_at: datetime | None, now: datetime) -> str:
    """Return why the run has not left yet."""
    if run.reason:
        return run.reason
    if run.state == Run.State.WAITING:
        return f"A maintainer has to approve commit {run.entry.sha[:8]} first."
    if not nodes:
        return "No node is online. It leaves as soon as one is."
    if leaves_at is not None and leaves_at <= now:
        return "The next free node takes it."
    return "It leaves when the trains before it have arrived."
