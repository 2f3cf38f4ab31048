"""What came of the work that a node did, told to the sponsor who lent it."""

from __future__ import annotations

from collections.abc import Sequence

from leaderboard.models import Replay, Run
from scheduler.job_kinds import JobSummary
from scheduler.models import Job


def describe_outcome(run: Run) -> str:
    """1.0412 bits per byte, scored"""
    if run.state == Run.State.FINISHED and run.bits_per_byte is not None:
        return f"{run.bits_per_byte:.4f} bits per byte, {run.get_trust_display().lower()}"
    return run.reason or run.get_state_display().lower()


def summarize_training(jobs: Sequence[Job]) -> dict[int, JobSummary]:
    runs = Run.objects.filter(job__in=jobs).select_related("entry")
    return {
        run.job_id: JobSummary(run.entry.title, run.get_absolute_url(), describe_outcome(run))
        for run in runs
        if run.job_id is not None
    }


def summarize_scoring(jobs: Sequence[Job]) -> dict[int, JobSummary]:
    runs = Run.objects.filter(score_job__in=jobs).select_related("entry")
    return {
        run.score_job_id: JobSummary(f"Scoring of {run.entry.title}", run.get_absolute_url(), describe_outcome(run))
        for run in runs
        if run.score_job_id is not None
    }


def summarize_replays(jobs: Sequence[Job]) -> dict[int, JobSummary]:
    replays = Replay.objects.filter(job__in=jobs).select_related("run__entry")
    return {
        replay.job_id: JobSummary(
            f"Spot check of {replay.run.entry.title}",
            replay.run.get_absolute_url(),
            replay.sentence or replay.get_state_display().lower(),
        )
        for replay in replays
        if replay.job_id is not None
    }
