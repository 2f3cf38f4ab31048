"""Start estimates of waiting runs."""

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
    """The estimated start of a run."""

    run: Run
    begins_at: datetime | None
    """None if unknown: the run waits for approval, or no online node fits."""
    reason: str
    position: int | None = None
    """Position in the queue of all tracks; None if it is not queued, or beyond the horizon."""
    ends_at: datetime | None = None
    next_free: datetime | None = None
    """Time at which the first fitting node is free. It ends the reason's last sentence."""


def estimate_starts(
    waiting: Sequence[Run], now: datetime, queue_estimates: QueueEstimates | None = None
) -> list[RunStart]:
    """Return the estimates of waiting runs, loaded with entry and job. The number of queries is constant.

    `queue_estimates`: pass them if they are at hand.
    """
    if queue_estimates is None and any(is_queued(run) for run in waiting):
        queue_estimates = QueueEstimates(now)
    return [build_run_start(run, queue_estimates) for run in waiting]


def estimate_run_start(run: Run) -> RunStart | None:
    """Return the estimate of a queued run, None for any other."""
    return estimate_starts([run], timezone.now())[0] if is_queued(run) else None


def is_queued(run: Run) -> bool:
    return run.job is not None and run.job.state == Job.State.QUEUED


def build_run_start(run: Run, queue_estimates: QueueEstimates | None) -> RunStart:
    if run.state == Run.State.WAITING:
        return RunStart(run, None, run.reason or f"A maintainer has to approve commit {run.entry.sha[:8]} first.")
    if run.job is None or queue_estimates is None:
        return RunStart(run, None, run.reason)
    estimate = queue_estimates.get_estimate(run.job)
    reason = run.reason if run.job.state == Job.State.HELD else estimate.reason
    return RunStart(run, estimate.begins_at, reason, estimate.position, estimate.ends_at, estimate.next_free)
