"""Jobs of kind `score`: trusted nodes score finished runs, and releases, on held-out text.

The scores of a release are for its model card and the run's milestones; the board does not use them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from django.db import transaction
from pydantic import ValidationError

from leaderboard import graphs, run_jobs, runs, scoring_work
from leaderboard.job_handlers.train import describe_outcome, mark_run_cancelled, mark_run_failed
from leaderboard.models import Publication, Run, Score
from leaderboard.publishing import publications
from leaderboard.rankings import budget_charges, trust
from leaderboard.rankings.score_validation import Verdict
from leaderboard.run_states import RunEvent, apply_event
from leaderboard.sanitize import sanitize_text
from scheduler import storage
from scheduler.job_kinds import JobKind, JobSummary
from scheduler.models import SITE_ACTOR, Checkpoint, Event, Job, JobFile, Lease
from trainer import protocol
from trainer.protocol.files import RUN_FILE

LOSSES_FILE = "losses.npy"
"""File of a score job with the loss of each token."""


def build_score_order(run: Run, manifest: dict[str, Any], suite: Sequence[str]) -> protocol.ScoreOrder:
    file = run.get_run_file()
    assert file is not None, f"checked before scoring: run {run.pk} has sent its {RUN_FILE}"
    return protocol.ScoreOrder(
        dataset=run.season.dataset("test"),
        run=storage.build_file_reference(file.blob, RUN_FILE),
        checkpoint=protocol.Checkpoint.model_validate(manifest),
        graph=graphs.build_order_files(run.graph),
        limit_tokens=run.season.test_tokens,
        test_secret=run.season.test_secret or None,
        reference=find_reference_losses(run),
        suite=tuple(suite),
        suite_files=run.season.get_evaluation_files(suite) or None,
        suite_limit=run.track.suite_limit,
    )


def find_reference_losses(run: Run) -> protocol.FileRef | None:
    """Return the losses of the first scored run of the season's baseline on the track, with the whole budget."""
    scored = Run.objects.scored(run.track).filter(season=run.season, entry=run.season.baseline_id)
    files = JobFile.objects.filter(job__scored_run__in=scored.filter(budget=run.track.budget), path=LOSSES_FILE)
    file = files.select_related("blob").order_by("job").first()
    return storage.build_file_reference(file.blob, LOSSES_FILE) if file else None


# --- runs -------------------------------------------------------------------------------------------------------------


class ScoreHandler(JobKind):
    """Jobs of kind `score`: those of runs here, those of releases by `ReleaseScoreHandler`."""

    @classmethod
    def for_job(cls, job: Job) -> JobKind:
        return ReleaseScoreHandler() if Publication.objects.filter(score_job=job).exists() else cls()

    def find_read_checkpoint(self, job: Job) -> Checkpoint | None:
        return Run.objects.select_related("checkpoint").get(score_job=job).checkpoint

    def build_order(self, job: Job, resume: protocol.Checkpoint | None) -> protocol.ScoreOrder:
        run = Run.objects.select_related("season", "track", "checkpoint").get(score_job=job)
        assert run.checkpoint is not None, "a scored run was trained"
        return build_score_order(run, run.checkpoint.manifest, scoring_work.get_suite(run))

    def handle_lease(self, job: Job, lease: Lease) -> None:
        Event.record(f"node:{lease.node.name}", Run.objects.get(score_job=job), f"Being scored on {lease.node.name}.")

    def handle_requeue(self, job: Job, reason: str) -> None:
        run = Run.objects.get(score_job=job)
        Event.record(SITE_ACTOR, run, f"The scoring node was lost ({reason}); another one scores it.")

    def handle_done(self, job: Job, result: dict[str, Any]) -> None:
        run = Run.objects.get(score_job=job)
        lease = job.leases.select_related("node").last()
        if lease is None or not lease.node.trusted:
            mark_run_failed(run, "infrastructure", "It was scored on an untrusted node; the score does not count.")
            return
        try:
            verdict = Verdict.model_validate(result)
        except ValidationError as error:
            field = ".".join(str(part) for part in error.errors()[0]["loc"]) or "answer"
            mark_run_failed(run, "infrastructure", f"The scorer's answer is invalid ({field}); nothing was recorded.")
            return
        finish_scored_run(run, verdict, lease.node.name)

    def handle_failure(self, job: Job, cause: protocol.Cause, reason: str) -> None:
        run = Run.objects.select_related("checkpoint", "job").get(score_job=job)
        if run.checkpoint is not None and run.checkpoint.dropped_at is not None:
            runs.resume_training(run, reason)
        else:
            mark_run_failed(run, cause, reason)

    def handle_cancellation(self, job: Job, reason: str) -> None:
        mark_run_cancelled(Run.objects.get(score_job=job), reason)

    def describe_jobs(self, jobs: Sequence[Job]) -> dict[int, JobSummary]:
        return describe_releases(jobs) | {
            run.score_job_id: JobSummary(f"Scoring of {run.entry.title}", run.get_absolute_url(), describe_outcome(run))
            for run in Run.objects.filter(score_job__in=jobs).select_related("entry")
            if run.score_job_id is not None
        }


def finish_scored_run(run: Run, verdict: Verdict, node: str) -> None:
    fields = {**verdict.run_fields(), **budget_charges.compute_charges(run, verdict)}
    message = f"Scored on {node}: {verdict.bits_per_byte:.4f} bits per byte."
    apply_event(run, RunEvent.SCORE, actor=f"node:{node}", message=message, **fields)
    Score.objects.bulk_create(
        verdict.scores(run),
        update_conflicts=True,
        unique_fields=["run", "name"],
        update_fields=["value", "stderr", "count"],
    )
    trust.mark_scored(run)
    runs.queue_whole_run(run)


# --- releases ---------------------------------------------------------------------------------------------------------


def queue_release_scores() -> int:
    """Queue the missing score jobs and return their number. Idempotent."""
    due = Publication.objects.filter(is_release=True, score_job=None, scores=[])
    related = due.select_related("run__job", "run__track__season", "run__entry__bundle")
    return sum(map(queue_release_score, related))


@transaction.atomic
def queue_release_score(publication: Publication) -> bool:
    """Queue the release's score job once; return whether this call did. Not before its run has sent its `run.json`."""
    run = publication.run
    if run.job is None or run.get_run_file() is None:
        return False
    job = Job.objects.create(**run_jobs.build_score_job(run, run.track.suite))
    is_assigned = Publication.objects.filter(pk=publication.pk, score_job=None).update(score_job=job)
    if not is_assigned:
        job.delete()
    return bool(is_assigned)


class ReleaseScoreHandler(JobKind):
    """Jobs of kind `score` for a release."""

    def build_order(self, job: Job, resume: protocol.Checkpoint | None) -> protocol.ScoreOrder:
        publication = get_publication(job)
        return build_score_order(publication.run, publication.manifest, publication.run.track.suite)

    def handle_lease(self, job: Job, lease: Lease) -> None:
        record_event(get_publication(job), f"node:{lease.node.name}", f"is being scored on {lease.node.name}.")

    def handle_done(self, job: Job, result: dict[str, Any]) -> None:
        publication, lease = get_publication(job), job.leases.select_related("node").last()
        if lease is None or not lease.node.trusted:
            record_event(publication, SITE_ACTOR, "was scored on an untrusted node; the score does not count.")
            return
        try:
            verdict = Verdict.model_validate(result)
        except ValidationError:
            record_event(publication, SITE_ACTOR, "was scored, but the answer is invalid; nothing was recorded.")
            return
        Publication.objects.filter(pk=publication.pk).update(
            scores=[score.to_dict() for score in verdict.scores(publication.run)]
        )
        record_event(publication, f"node:{lease.node.name}", f"has {verdict.bits_per_byte:.4f} bits per byte.")
        publications.enqueue_upload(publication)  # to update its model card

    def handle_failure(self, job: Job, cause: protocol.Cause, reason: str) -> None:
        record_event(get_publication(job), SITE_ACTOR, f"could not be scored: {sanitize_text(reason, 300)}")

    def handle_cancellation(self, job: Job, reason: str) -> None:
        record_event(get_publication(job), SITE_ACTOR, f"is not scored: {sanitize_text(reason, 300)}")

    describe_jobs = ScoreHandler.describe_jobs


def describe_releases(jobs: Sequence[Job]) -> dict[int, JobSummary]:
    summaries = {}
    for publication in Publication.objects.filter(score_job__in=jobs).select_related("run__entry"):
        run, bits = publication.run, publication.bits_per_byte
        outcome = "unfinished or without a result" if bits is None else f"{bits:.4f} bits per byte"
        title = f"Scoring of {run.entry.title}, {publication.name}"
        summaries[publication.score_job_id or 0] = JobSummary(title, run.get_absolute_url(), outcome)
    return summaries


def get_publication(job: Job) -> Publication:
    return Publication.objects.select_related("run__season", "run__track", "run__entry").get(score_job=job)


def record_event(publication: Publication, actor: str, message: str) -> None:
    Event.record(actor, publication.run, f"Release {publication.name} {message}")
