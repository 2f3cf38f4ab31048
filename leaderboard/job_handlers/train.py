"""What training and scoring mean to the queue: orders go out, curves and verdicts come in."""

from __future__ import annotations

import json
import logging
from collections.abc import Sequence
from typing import Any

from django.db.models import F
from django.utils import timezone
from pydantic import ValidationError

from leaderboard import initial_weights, runs
from leaderboard.initial_weights import RUN_FILE
from leaderboard.job_handlers import metrics, replays, sponsor_outcomes
from leaderboard.models import Run, Score
from leaderboard.rankings import budget_charges, speed_probes, trust
from leaderboard.rankings.score_validation import Verdict
from leaderboard.sanitize import plain_json, plain_text
from scheduler import storage
from scheduler.job_kinds import JobKind, JobSummary
from scheduler.models import Checkpoint, Event, Job, JobFile, Lease
from trainer import protocol

logger = logging.getLogger(__name__)

RUN_FILE_BYTES = 256_000
COUNTS_FROM = 0.1
"""A run cancelled after this share of its budget counts against its entry (scoring.md)."""


def get_node_class(lease: Lease) -> str:
    """Return the words by which nodes are comparable: the accelerators of the lane, or else its processors."""
    if lease.gpus:
        return plain_text(f"{lease.gpus} x {lease.accelerator}", 120)
    cpus = lease.node.hardware.get("cpus", "?")
    share = cpus // lease.node.slots if isinstance(cpus, int) else cpus
    return plain_text(f"{share} CPU cores", 120)


def get_temperature(job: Job) -> float | None:
    """Return what the agent said last of its hottest GPU, in degrees Celsius; None where it has none."""
    said = job.leases.filter(state=Lease.State.ACTIVE).values_list("node__health", flat=True).last() or {}
    found = said.get("temperature_celsius")
    return float(found) if isinstance(found, int | float) else None


class TrainHandler(JobKind):
    """Jobs of kind `train`."""

    def build_order(self, job: Job, resume: protocol.Checkpoint | None) -> protocol.TrainOrder:
        run = Run.objects.with_entry().get(job=job)
        return protocol.TrainOrder(
            dataset=run.season.dataset(),
            config=runs.get_configuration(run),
            resume=resume,
            probe=speed_probes.build_probe_spec(run.track),
            base=initial_weights.get_initial_weights(run),
        )

    def handle_lease(self, job: Job, lease: Lease) -> None:
        run = Run.objects.get(job=job)
        last = job.checkpoints.last()
        sentence = f"Training on {lease.node.name}."
        if last or run.step:
            metrics.delete_after_step(run, last.step if last else -1)
            sentence = (
                f"Goes on from step {last.step} on {lease.node.name}." if last else f"Starts over on {lease.node.name}."
            )
        run.change(
            Run.State.TRAINING,
            since=[Run.State.QUEUED, Run.State.PAUSED, Run.State.TRAINING],
            actor=f"node:{lease.node.name}",
            sentence=sentence,
            reason="",
            node_name=lease.node.name,
            node_class=get_node_class(lease),
            started_at=run.started_at or timezone.now(),
        )

    def handle_metrics(self, job: Job, rows: Sequence[dict[str, Any]]) -> None:
        run = Run.objects.get(job=job)
        if run.state == Run.State.TRAINING:
            metrics.store_metrics(run, rows, get_temperature(job))

    def handle_checkpoint(self, job: Job, checkpoint: Checkpoint) -> None:
        """Nothing: the queue resumes from it, and the final one is chosen when the run is done."""

    def handle_requeue(self, job: Job, reason: str) -> None:
        run = Run.objects.get(job=job)
        last = job.checkpoints.last()
        onward = f"goes on from step {last.step}" if last else "starts again"
        when = "once it is let go on" if job.state == Job.State.HELD else "as soon as a node is free"
        run.change(
            Run.State.PAUSED,
            since=[Run.State.TRAINING],
            actor=runs.SITE,
            sentence=f"Left its node ({reason.rstrip('.')}); {onward} {when}.",
            reason=f"{reason} It {onward} {when}."[:500],
        )

    def handle_done(self, job: Job, result: dict[str, Any]) -> None:
        """Note the end of training and put the score job into the queue, in one transaction."""
        run = Run.objects.with_entry().get(job=job)
        kept = job.checkpoints.with_files()
        final = kept.filter(step=result["step"]).first() if isinstance(result.get("step"), int) else None
        final = final or kept.last()
        if final is None or not job.files.filter(path=RUN_FILE).exists():
            missing = "its final checkpoint" if final is None else f"its {RUN_FILE}"
            fail_run(run, "infrastructure", f"The node finished training but did not send {missing}.")
            return
        if run.change(
            Run.State.SCORING,
            since=[Run.State.QUEUED, Run.State.TRAINING, Run.State.PAUSED],
            actor=runs.SITE,
            sentence=f"Trained to the end, step {final.step}.",
            reason="",
            checkpoint=final,
            trained_at=timezone.now(),
            fraction=1.0,
            **speed_probes.evaluate_probes(run, job, result),
        ):
            runs.queue_score(run)
            replays.draw_replay(run)

    def handle_failure(self, job: Job, cause: protocol.Cause, reason: str) -> None:
        fail_run(Run.objects.get(job=job), cause, reason)

    def handle_cancellation(self, job: Job, reason: str) -> None:
        cancel_run(Run.objects.get(job=job), reason)

    def estimate_seconds_left(self, jobs: Sequence[Job]) -> dict[int, float]:
        runs = Run.objects.filter(job__in=jobs, fraction__gt=0, seconds__gt=0).only(
            "job", "state", "fraction", "seconds"
        )
        return {run.job_id: left for run in runs if run.job_id and (left := run.seconds_left) is not None}

    def describe_jobs(self, jobs: Sequence[Job]) -> dict[int, JobSummary]:
        return sponsor_outcomes.summarize_training(jobs)


class RunScoreHandler(JobKind):
    """Jobs of kind `score`."""

    def build_order(self, job: Job, resume: protocol.Checkpoint | None) -> protocol.ScoreOrder:
        run = Run.objects.select_related("season", "track", "checkpoint").get(score_job=job)
        assert run.checkpoint is not None, "what is scored was trained"
        file = JobFile.objects.select_related("blob").get(job=run.job_id, path=RUN_FILE)
        return protocol.ScoreOrder(
            dataset=run.season.dataset(),
            run=storage.build_file_reference(file.blob, RUN_FILE),
            checkpoint=protocol.Checkpoint.model_validate(run.checkpoint.manifest),
            suite=tuple(run.track.suite) if run.budget == run.track.budget else (),  # the curve needs no more
            suite_limit=run.track.suite_limit,
        )

    def handle_lease(self, job: Job, lease: Lease) -> None:
        Event.record(f"node:{lease.node.name}", Run.objects.get(score_job=job), f"Being scored on {lease.node.name}.")

    def handle_metrics(self, job: Job, rows: Sequence[dict[str, Any]]) -> None:
        """Nothing: a scorer has no curve."""

    def handle_checkpoint(self, job: Job, checkpoint: Checkpoint) -> None:
        """Nothing: a scorer leaves no checkpoint."""

    def handle_requeue(self, job: Job, reason: str) -> None:
        run = Run.objects.get(score_job=job)
        Event.record(runs.SITE, run, f"The scoring node was lost ({reason}); another one scores it.")

    def handle_done(self, job: Job, result: dict[str, Any]) -> None:
        run = Run.objects.get(score_job=job)
        lease = job.leases.select_related("node").last()
        if lease is None or not lease.node.trusted:
            fail_run(
                run, "infrastructure", "It was scored on a node that is not trusted to score; that does not count."
            )
            return
        try:
            verdict = Verdict.model_validate(result)
        except ValidationError as error:
            field = ".".join(str(part) for part in error.errors()[0]["loc"]) or "answer"
            fail_run(run, "infrastructure", f"The scorer's answer cannot be right ({field}); nothing was recorded.")
            return
        finish_scored_run(run, verdict, lease.node.name)

    def handle_failure(self, job: Job, cause: protocol.Cause, reason: str) -> None:
        fail_run(Run.objects.get(score_job=job), cause, reason)

    def handle_cancellation(self, job: Job, reason: str) -> None:
        cancel_run(Run.objects.get(score_job=job), reason)

    def describe_jobs(self, jobs: Sequence[Job]) -> dict[int, JobSummary]:
        return sponsor_outcomes.summarize_scoring(jobs)


def finish_scored_run(run: Run, verdict: Verdict, node: str) -> None:
    """Write the scores and finish the run."""
    if run.change(
        Run.State.FINISHED,
        since=[Run.State.SCORING],
        actor=f"node:{node}",
        sentence=f"Scored on {node}: {verdict.bits_per_byte:.4f} bits per byte.",
        reason="",
        finished_at=timezone.now(),
        **verdict.run_fields(),
        **budget_charges.compute_charges(run, verdict),
    ):
        Score.objects.bulk_create(
            verdict.scores(run),
            update_conflicts=True,
            unique_fields=["run", "name"],
            update_fields=["value", "stderr", "count"],
        )
        trust.mark_scored(run)
        runs.queue_whole_run(run)


def fail_run(run: Run, cause: protocol.Cause, reason: str) -> None:
    """End the run with a reason that its contributor understands."""
    reason = plain_text(reason, 400) or "It ended without a reason."
    whose = "" if cause == "model" else " This was not the model's fault: the same seed can run again."
    run.change(
        Run.State.FAILED,
        since=[Run.State.QUEUED, *Run.LIVE],
        actor=runs.SITE,
        sentence=f"Failed: {reason}{whose}",
        reason=f"{reason}{whose}",
        cause=cause,
        finished_at=timezone.now(),
    )


def cancel_run(run: Run, reason: str) -> None:
    counts = run.fraction > COUNTS_FROM and run.state != Run.State.SCORING
    weight = f" With {run.fraction:.0%} of its budget used it counts against its entry." if counts else ""
    reason = plain_text(reason, 400)
    run.change(
        Run.State.CANCELLED,
        since=[Run.State.QUEUED, *Run.LIVE],
        actor=runs.SITE,
        sentence=f"Cancelled: {reason}{weight}",
        reason=f"{reason}{weight}",
        finished_at=timezone.now(),
    )


def recover_unfinished() -> None:
    """Do what was left undone by a crash: missing score jobs, and the configurations that nodes resolved."""
    for run in Run.objects.unscored().select_related("entry__bundle", "job__release", "track"):
        if run.checkpoint_id and run.job_id:
            runs.queue_score(run)
    for run in Run.objects.filter(config={}, trained_at__isnull=False, job__files__path=RUN_FILE).select_related("job"):
        store_configuration(run)


def store_configuration(run: Run) -> None:
    """Copy the run's `run.json` onto its row: provenance that the page shows."""
    file = JobFile.objects.select_related("blob").get(job=run.job_id, path=RUN_FILE)
    config = {"error": f"{RUN_FILE} could not be read."}
    if file.blob.size <= RUN_FILE_BYTES:
        try:
            read = plain_json(json.loads(storage.read_blob(file.blob)))
            config = read if isinstance(read, dict) and read else config
        except (ValueError, RecursionError):
            logger.warning("Run %s: its %s is no JSON.", run.pk, RUN_FILE)
    Run.objects.filter(pk=run.pk).update(config=config, revision=F("revision") + 1)
