"""Jobs of kind `train`: a node trains a run, whose curve, checkpoints and outcome are stored."""

from __future__ import annotations

import json
import logging
from collections.abc import Sequence
from typing import Any

from django.db.models import F
from django.utils import timezone

from leaderboard import charged_time, graphs, initial_weights, run_jobs, run_states, runs
from leaderboard.job_handlers import metrics, replays
from leaderboard.models import Run
from leaderboard.publishing import releases
from leaderboard.rankings import speed_probes, trust
from leaderboard.run_states import RunEvent, apply_event
from leaderboard.sanitize import sanitize_json, sanitize_text
from leaderboard.submissions import policy
from scheduler import storage
from scheduler.job_kinds import JobKind, JobSummary
from scheduler.models import SITE_ACTOR, Blob, Checkpoint, Job, JobFile, Lease
from trainer import protocol
from trainer.protocol.files import RUN_FILE

logger = logging.getLogger(__name__)

RUN_FILE_BYTES = 256_000
PLAN_MARGIN = 2  # a run has at most so many times the steps that its progress so far suggests


def get_node_class(lease: Lease, devices: int) -> str:
    """Return the hardware that the run uses: of a slot with more GPUs, only `devices`."""
    if lease.gpus:
        return sanitize_text(f"{min(lease.gpus, devices)} x {lease.accelerator}", 120)
    cpus = lease.node.hardware.get("cpus", "?")
    share = cpus // lease.node.slots if isinstance(cpus, int) else cpus
    return sanitize_text(f"{share} CPU cores", 120)


def get_temperature(health: dict[str, Any] | None) -> float | None:
    """Return the temperature in what an agent reports of its node, in degrees Celsius."""
    temperature = (health or {}).get("temperature_celsius")
    return float(temperature) if isinstance(temperature, int | float) else None


def find_final_checkpoint(job: Job, result: dict[str, Any]) -> Checkpoint | None:
    """Return the newest checkpoint, even if the result names an earlier step; None if it names a later one."""
    last = job.checkpoints.resumable().last()
    step = result.get("step", 0)
    return last if last is not None and isinstance(step, int) and step <= last.step else None


def describe_outcome(run: Run) -> str:
    """Return for example "1.0412 bits per byte, scored"."""
    if run.state == Run.State.FINISHED and run.bits_per_byte is not None:
        return f"{run.bits_per_byte:.4f} bits per byte, {run.get_trust_display().lower()}"
    return run.reason or run.get_state_display().lower()


class TrainHandler(JobKind):
    def build_order(self, job: Job, resume: protocol.Checkpoint | None) -> protocol.TrainOrder:
        run = Run.objects.with_entry().get(job=job)
        return protocol.TrainOrder(
            dataset=run.season.dataset("train", "dev"),
            config={**run_jobs.get_configuration(run), "milestones": run_jobs.get_milestone_percent(run)},
            graph=graphs.build_order_files(run.graph),
            resume=resume,
            probe=speed_probes.build_probe_spec(run.track),
            base=initial_weights.get_initial_weights(run),
            upload_seconds=run_jobs.get_upload_seconds(run),
        )

    def find_result_problem(self, job: Job, result: dict[str, Any]) -> str:
        has_weights = find_final_checkpoint(job, result) is not None
        if has_weights and job.files.filter(path=RUN_FILE).exists():
            return ""
        missing = f"its {RUN_FILE}" if has_weights else "the checkpoint of its last step"
        return f"The node finished training but did not send {missing}."

    def get_reported_step(self, job: Job) -> int:
        return Run.objects.only("step").get(job=job).step

    def get_last_step(self, job: Job) -> int | None:
        run = Run.objects.only("step", "fraction").get(job=job)
        return int(PLAN_MARGIN * run.step / run.fraction) + 1 if run.step and run.fraction else None

    def handle_lease(self, job: Job, lease: Lease) -> None:
        run = Run.objects.get(job=job)
        last = job.checkpoints.resumable().last()
        message = f"Training on {lease.node.name}."
        if last or run.step:
            metrics.delete_after_step(run, last.step if last else -1)
            how = f"Resumes from step {last.step}" if last else "Starts over"
            message = f"{how} on {lease.node.name}."
        mark_run_started(run, lease, message)

    def handle_metrics(self, job: Job, rows: Sequence[dict[str, Any]]) -> None:
        # 1,000 nodes in training cause this 100 times a second (`python -m benchmarks.load`)
        run = Run.objects.only("state").get(job=job)
        leases = Lease.objects.filter(job=job, state=Lease.State.ACTIVE).order_by("-pk")
        health = leases.values_list("node__health", flat=True).first()
        if run.state == Run.State.TRAINING:
            metrics.store_metrics(run, rows, get_temperature(health))

    def handle_checkpoint(self, job: Job, checkpoint: Checkpoint) -> None:
        charged_time.record_charged_time(checkpoint)

    def handle_milestone(self, job: Job, milestone: protocol.Checkpoint, blobs: Sequence[Blob]) -> None:
        releases.keep_milestone(Run.objects.select_related("track").get(job=job), milestone, blobs)

    def handle_requeue(self, job: Job, reason: str) -> None:
        run = Run.objects.get(job=job)
        if run.is_behind:
            verdict = run.describe_look()
            apply_event(run, RunEvent.STOP, actor=SITE_ACTOR, message=f"Stopped {verdict}", reason=f"Stopped {verdict}")
            policy.charge_hours(run)
            return
        last = job.checkpoints.resumable().last()
        mark_run_paused(run, job, reason, f"It resumes from step {last.step}" if last else "It starts over")

    def handle_done(self, job: Job, result: dict[str, Any]) -> None:
        """Record the end of training and queue the score job, in one transaction."""
        run = Run.objects.with_entry().get(job=job)
        final = find_final_checkpoint(job, result)
        assert final is not None, "checked by find_result_problem"
        fields = {"checkpoint": final, "trained_at": timezone.now(), "fraction": 1.0}
        fields |= speed_probes.evaluate_probes(run, job, result)
        for name, value in fields.items():  # the score job is of the trained run
            setattr(run, name, value)
        message = f"Trained to the end, step {final.step}; queued for scoring on a trusted node."
        score_job = runs.build_score_job(run)
        apply_event(run, RunEvent.TRAIN, actor=SITE_ACTOR, message=message, score_job=score_job, **fields)
        if problem := charged_time.find_charge_problem(run):
            trust.apply_trust_event(run, trust.TrustEvent.DISPUTE, actor=SITE_ACTOR, message=problem)
        replays.draw_replay(run)

    def handle_failure(self, job: Job, cause: protocol.Cause, reason: str) -> None:
        mark_run_failed(Run.objects.get(job=job), cause, reason)

    def handle_cancellation(self, job: Job, reason: str) -> None:
        mark_run_cancelled(Run.objects.get(job=job), reason)

    def estimate_seconds_left(self, jobs: Sequence[Job]) -> dict[int, float]:
        started = Run.objects.filter(job__in=jobs, fraction__gt=0, seconds__gt=0)
        rows = started.only("job", "state", "fraction", "seconds")
        return {run.job_id: left for run in rows if run.job_id and (left := run.seconds_left) is not None}

    def describe_jobs(self, jobs: Sequence[Job]) -> dict[int, JobSummary]:
        return {
            run.job_id: JobSummary(run.entry.title, run.get_absolute_url(), describe_outcome(run))
            for run in Run.objects.filter(job__in=jobs).select_related("entry")
            if run.job_id is not None
        }


def mark_run_started(run: Run, lease: Lease, message: str) -> None:
    apply_event(
        run,
        RunEvent.TAKE,
        actor=f"node:{lease.node.name}",
        message=message,
        node_name=lease.node.name,
        node_class=get_node_class(lease, run_jobs.get_configuration(run).get("devices", 1)),
        started_at=run.started_at or timezone.now(),
    )


def mark_run_paused(run: Run, job: Job, reason: str, next_step: str) -> None:
    """Pause a run that lost its node. `next_step`: for example "It starts over"."""
    when = "when it is queued again" if job.state == Job.State.HELD else "as soon as a node is free"
    message = f"Left its node ({reason.rstrip('.')}). {next_step} {when}."
    apply_event(run, RunEvent.LEAVE, actor=SITE_ACTOR, message=message, reason=f"{reason} {next_step} {when}."[:500])


def mark_run_failed(run: Run, cause: protocol.Cause, reason: str) -> None:
    reason = sanitize_text(reason, 400) or "It ended without a reason."
    hint = "" if cause == "model" else " This was not the model's fault: the same seed can run again."
    message, reason = f"Failed: {reason}{hint}", f"{reason}{hint}"
    apply_event(run, RunEvent.FAIL, actor=SITE_ACTOR, message=message, reason=reason, cause=cause)


def mark_run_cancelled(run: Run, reason: str) -> None:
    counts = run_states.is_attempt(run, RunEvent.CANCEL, "")
    hint = f" With {run.fraction:.0%} of its budget used it counts as an attempt of its entry." if counts else ""
    reason = f"{sanitize_text(reason, 400)}{hint}"
    apply_event(run, RunEvent.CANCEL, actor=SITE_ACTOR, message=f"Cancelled: {reason}", reason=reason)


def store_configurations() -> None:
    """Store the configurations that nodes resolved and that are not stored yet."""
    for run in Run.objects.filter(config={}, trained_at__isnull=False, job__files__path=RUN_FILE).select_related("job"):
        store_configuration(run)


def store_configuration(run: Run) -> None:
    """Copy the run's `run.json` to its row, as provenance for its page."""
    file = JobFile.objects.select_related("blob").get(job=run.job_id, path=RUN_FILE)
    config = {"error": f"{RUN_FILE} could not be read."}
    if file.blob.size <= RUN_FILE_BYTES:
        try:
            content = sanitize_json(json.loads(storage.read_blob(file.blob)))
            config = content if isinstance(content, dict) and content else config
        except (ValueError, RecursionError):
            logger.warning("Run %s: its %s is not valid JSON.", run.pk, RUN_FILE)
    Run.objects.filter(pk=run.pk).update(config=config, revision=F("revision") + 1)
