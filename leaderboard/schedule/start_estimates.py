"""When will what waits leave? The queue's own queue_estimates, told for the runs of a page."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from django.utils import timezone

from leaderboard.models import Run
from scheduler.estimates import QueueEstimates
from scheduler.models import Job


@dataclass(frozen=True)
class RunStart:
    """A line of the timetable."""

    run: Run
    leaves_at: datetime | None
    """None where nobody can say: it waits for approval, or no node fits that is online."""
    reason: str
    position: int | None = None
    """Among all that waits for a node, on whatever track; None where it does not wait in the queue, or far back."""
    arrives_at: datetime | None = None
    next_free: datetime | None = None
    """When the first of the nodes is free that it waits for: the end of the reason's last sentence."""


def estimate_starts(
    waiting: Sequence[Run], now: datetime, queue_estimates: QueueEstimates | None = None
) -> list[RunStart]:
    """Return a line for each waiting run, taken with its entry and job. As many queries for one as for a hundred.

    Whoever has looked at the queue already brings that along.
    """
    if queue_estimates is None and any(is_queued(run) for run in waiting):
        queue_estimates = QueueEstimates(now)
    return [build_run_start(run, queue_estimates) for run in waiting]


def estimate_run_start(run: Run) -> RunStart | None:
    """Return when a run leaves or goes on that waits for a node, for what it waits, and when it arrives."""
    return estimate_starts([run], timezone.now())[0] if is_queued(run) else None


def is_queued(run: Run) -> bool:
    return run.job is not None and run.job.state == Job.State.QUEUED


def build_run_start(run: Run, queue_estimates: QueueEstimates | None) -> RunStart:
    if run.state == Run.State.WAITING:
        return RunStart(run, None, run.reason or f"A maintainer has to approve commit {run.entry.sha[:8]} first.")
    if run.job is None or queue_estimates is None:
        return RunStart(run, None, run.reason)
    prospect = queue_estimates.get_estimate(run.job)
    reason = run.reason if run.job.state == Job.State.HELD else prospect.reason
    return RunStart(run, prospect.begins_at, reason, prospect.position, prospect.ends_at, prospect.next_free)
