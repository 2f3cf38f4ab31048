"""What releases are worth: each is scored on held-out text by a trusted node, as a finished run is.

The numbers are for the release's card and the run's milestones: nothing on the board hangs on them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from django.db import transaction
from pydantic import ValidationError

from leaderboard import runs
from leaderboard.initial_weights import RUN_FILE, get_run_file
from leaderboard.models import Publication
from leaderboard.models.publications import FINAL
from leaderboard.publishing import publications
from leaderboard.rankings.score_validation import Verdict
from leaderboard.sanitize import plain_text
from scheduler import storage
from scheduler.job_kinds import JobKind, JobSummary
from scheduler.models import Checkpoint, Event, Job, JobFile, Lease
from trainer import protocol


def queue_release_scores() -> int:
    """Queue what is to be scored; return how much. Safe to run at any time, and twice."""
    due = Publication.objects.filter(run__track__releases__gt=0, score_job=None, scores=[]).exclude(name=FINAL)
    return sum(
        queue_release_score(kept) for kept in due.select_related("run__job", "run__track__season", "run__entry__bundle")
    )


@transaction.atomic
def queue_release_score(kept: Publication) -> bool:
    """Give a release its score job, once; return whether this call did. Until its run has said what it is, not yet."""
    run = kept.run
    if run.job is None or get_run_file(run) is None:
        return False
    job = Job.objects.create(**runs.build_score_job(run))
    ours = Publication.objects.filter(pk=kept.pk, score_job=None).update(score_job=job)
    if not ours:
        job.delete()
    return ours == 1


class ReleaseScoreHandler(JobKind):
    """Jobs of kind `score` that are about a release."""

    def build_order(self, job: Job, resume: protocol.Checkpoint | None) -> protocol.ScoreOrder:
        kept = get_publication(job)
        run = kept.run
        file = JobFile.objects.select_related("blob").get(job=run.job_id, path=RUN_FILE)
        return protocol.ScoreOrder(
            dataset=run.season.dataset(),
            run=storage.build_file_reference(file.blob, RUN_FILE),
            checkpoint=protocol.Checkpoint.model_validate(kept.manifest),
            suite=tuple(run.track.suite),
            suite_limit=run.track.suite_limit,
        )

    def handle_lease(self, job: Job, lease: Lease) -> None:
        record_event(get_publication(job), f"node:{lease.node.name}", f"is being scored on {lease.node.name}.")

    def handle_metrics(self, job: Job, rows: Sequence[dict[str, Any]]) -> None:
        """Nothing: a scorer has no curve."""

    def handle_checkpoint(self, job: Job, checkpoint: Checkpoint) -> None:
        """Nothing: a scorer leaves no checkpoint."""

    def handle_requeue(self, job: Job, reason: str) -> None:
        """Nothing: another node scores it."""

    def handle_done(self, job: Job, result: dict[str, Any]) -> None:
        kept, lease = get_publication(job), job.leases.select_related("node").last()
        if lease is None or not lease.node.trusted:
            record_event(kept, runs.SITE, "was scored on a node that is not trusted to score; that does not count.")
            return
        try:
            verdict = Verdict.model_validate(result)
        except ValidationError:
            record_event(kept, runs.SITE, "was scored, and the answer cannot be right; nothing was recorded.")
            return
        Publication.objects.filter(pk=kept.pk).update(scores=[score.to_dict() for score in verdict.scores(kept.run)])
        record_event(kept, f"node:{lease.node.name}", f"has {verdict.bits_per_byte:.4f} bits per byte.")
        publications.enqueue_upload(kept)  # its card says so from now on

    def handle_failure(self, job: Job, cause: protocol.Cause, reason: str) -> None:
        record_event(get_publication(job), runs.SITE, f"could not be scored: {plain_text(reason, 300)}")

    def handle_cancellation(self, job: Job, reason: str) -> None:
        record_event(get_publication(job), runs.SITE, f"is not scored: {plain_text(reason, 300)}")

    def describe_jobs(self, jobs: Sequence[Job]) -> dict[int, JobSummary]:
        found = Publication.objects.filter(score_job__in=jobs).select_related("run__entry")
        return {kept.score_job_id: summarize_publication(kept) for kept in found if kept.score_job_id is not None}


def get_publication(job: Job) -> Publication:
    return Publication.objects.select_related("run__season", "run__track", "run__entry").get(score_job=job)


def record_event(kept: Publication, actor: str, sentence: str) -> None:
    Event.record(actor, kept.run, f"Release {kept.name} {sentence}")


def summarize_publication(kept: Publication) -> JobSummary:
    bits = kept.bits_per_byte
    outcome = "under way or without a number" if bits is None else f"{bits:.4f} bits per byte"
    return JobSummary(f"Scoring of {kept.run.entry.title}, {kept.name}", kept.run.get_absolute_url(), outcome)
