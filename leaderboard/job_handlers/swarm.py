"""Jobs of kinds `swarm`, the one that leads a run many machines train together, and `seat`, a place in it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from leaderboard import runs
from leaderboard.job_handlers import swarm_runs
from leaderboard.job_handlers.train import TrainHandler
from leaderboard.models import Run, Seat
from scheduler import transitions as jobs
from scheduler.job_kinds import JobKind, JobSummary
from scheduler.models import Checkpoint, Job, Lease
from trainer import protocol

ENDS = ("The run is finished.", "The run has been stopped.")
"""What a coordinator sends everybody home with, which a seat may tell before the coordinator itself."""
AWAY = "The run waits for a coordinator."


class SwarmHandler(TrainHandler):
    """A training, as far as the run is concerned; its seats come and go with it."""

    def build_order(self, job: Job, resume: protocol.Checkpoint | None) -> protocol.SwarmOrder:  # type: ignore[override]
        return swarm_runs.build_swarm_order(Run.objects.with_entry().get(job=job), resume)

    def handle_metrics(self, job: Job, rows: Sequence[dict[str, Any]]) -> None:
        super().handle_metrics(job, [row for row in rows if row.get("kind") != "swarm"])
        run = Run.objects.with_entry().get(job=job)
        told = [row for row in rows if row.get("kind") == "swarm"]
        if told and run.state == Run.State.TRAINING:
            swarm_runs.store_reports(run, told)

    def handle_requeue(self, job: Job, reason: str) -> None:
        super().handle_requeue(job, reason)
        swarm_runs.cancel_seats(Run.objects.get(job=job), AWAY)

    def handle_done(self, job: Job, result: dict[str, Any]) -> None:
        super().handle_done(job, result)
        swarm_runs.cancel_seats(Run.objects.get(job=job), "The run is finished.")

    def handle_failure(self, job: Job, cause: protocol.Cause, reason: str) -> None:
        super().handle_failure(job, cause, reason)
        swarm_runs.cancel_seats(Run.objects.get(job=job), "The run has failed.")

    def handle_cancellation(self, job: Job, reason: str) -> None:
        super().handle_cancellation(job, reason)
        swarm_runs.cancel_seats(Run.objects.get(job=job), "The run was cancelled.")


class SeatHandler(JobKind):
    """Places in a swarm. One that is lost is given up, and another is queued."""

    def build_order(self, job: Job, resume: protocol.Checkpoint | None) -> protocol.WorkerOrder:
        seat = Seat.objects.select_related("swarm__run__entry", "swarm__run__track").get(job=job)
        return swarm_runs.build_seat_order(seat)

    def handle_lease(self, job: Job, lease: Lease) -> None:
        Seat.objects.filter(job=job).update(node=lease.node, name=lease.node.name)
        self.another(job)

    def handle_metrics(self, job: Job, rows: Sequence[dict[str, Any]]) -> None:
        swarm_runs.store_seat_report(job.seat, [row for row in rows if row.get("kind") == "seat"])

    def handle_checkpoint(self, job: Job, checkpoint: Checkpoint) -> None:
        """Nothing: it leaves none."""

    def handle_requeue(self, job: Job, reason: str) -> None:
        jobs.cancel_job(job, runs.SITE, f"Its machine has left: {reason}")
        self.another(job)

    def handle_done(self, job: Job, result: dict[str, Any]) -> None:
        swarm_runs.store_seat_report(job.seat, [result])
        if result.get("why") not in ENDS:
            self.another(job)

    def handle_failure(self, job: Job, cause: protocol.Cause, reason: str) -> None:
        self.another(job)

    def handle_cancellation(self, job: Job, reason: str) -> None:
        """Nothing: the site itself has taken it away."""

    def another(self, job: Job) -> None:
        swarm_runs.fill_seats(swarm_runs.get_swarm(job.seat.swarm.run))

    def describe_jobs(self, jobs: Sequence[Job]) -> dict[int, JobSummary]:
        seats = Seat.objects.filter(job__in=jobs).select_related("swarm__run__entry")
        return {
            seat.job_id: JobSummary(
                f"A seat in {seat.swarm.run.entry.title}",
                seat.swarm.run.get_absolute_url(),
                f"{seat.rows} rows of text computed",
            )
            for seat in seats
        }
