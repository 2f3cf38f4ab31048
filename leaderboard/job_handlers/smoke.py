"""Jobs of kind `smoke`: the handler of smoke runs. `leaderboard.submissions.smoke_tests` queues them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from django.db.models import F
from pydantic import ValidationError

from leaderboard import runs
from leaderboard.models import Entry, Run
from leaderboard.sanitize import plain_json, plain_text
from leaderboard.submissions.smoke_tests import get_peak_flops
from scheduler import matching
from scheduler.job_kinds import JobKind, JobSummary
from scheduler.models import Blob, Job
from scheduler.transitions import transition
from trainer import protocol


class SmokeTestHandler(JobKind):
    def build_order(self, job: Job, resume: protocol.Checkpoint | None) -> protocol.SmokeOrder:
        entry = Entry.objects.select_related("track__season").get(smoke_job=job)
        track = entry.track
        needs = matching.parse_labels(tuple(track.needs_labels))
        names_gpu = any(matching.MODEL_LABEL.fullmatch(label) for label in needs.names)  # of unknown memory
        memory_bytes = needs.gpus * needs.gpu_memory_bytes or track.training_limits().memory_bytes
        site = {"arch": entry.architecture, "budget": track.budget}
        device = {"device": "cuda"} if needs.gpus or names_gpu else {}
        return protocol.SmokeOrder(
            config=runs.merge_configs(device, track.config, entry.config, site),
            tokenizer=track.season.tokenizer,
            memory_bytes=None if names_gpu and not needs.gpus else float(memory_bytes),
            peak=get_peak_flops(needs),
        )

    def handle_done(self, job: Job, result: dict[str, Any]) -> None:
        try:
            found = protocol.SmokeResult.model_validate(result)
        except ValidationError:
            record_outcome(job, None, "The smoke run's answer is invalid; it says nothing about this commit.")
            return
        record_outcome(job, found.passed, found.sentence, plain_json(found.model_dump(mode="json")))

    def handle_failure(self, job: Job, cause: protocol.Cause, reason: str) -> None:
        if cause == "model":
            record_outcome(job, False, reason)
        else:
            record_outcome(job, None, f"The smoke run could not run, which says nothing about this commit: {reason}")

    def handle_cancellation(self, job: Job, reason: str) -> None:
        record_outcome(job, None, f"The smoke run was cancelled: {reason}")

    def describe_jobs(self, jobs: Sequence[Job]) -> dict[int, JobSummary]:
        summaries = {}
        for entry in Entry.objects.filter(smoke_job__in=jobs):
            title = f"Smoke run of {entry.title}"
            summaries[entry.smoke_job_id or 0] = JobSummary(title, entry.get_absolute_url(), entry.smoke_sentence)
        return summaries


def record_outcome(job: Job, passed: bool | None, message: str, numbers: dict[str, Any] | None = None) -> None:
    """Store the outcome and let an approved entry's runs continue. `passed` is None if it says nothing.

    Requires the transaction that ends the job.
    """
    message = plain_text(message, 500)
    entry = Entry.objects.select_for_update().filter(smoke_job=job).first()
    if entry is None:
        return  # a newer smoke run has replaced this one
    verdict = {True: "passed", False: "failed", None: "without a verdict"}[passed]
    transition(
        entry,
        Entry.State.PROPOSED if entry.state == Entry.State.SMOKE else entry.state,
        since=[entry.state],
        actor=runs.SITE,
        message=f"Smoke run {verdict}: {message}",
        smoke={**(numbers or {}), "passed": passed},
        smoke_sentence=message,
    )
    if entry.state == Entry.State.APPROVED:
        queue_waiting_runs(entry, job.release, passed)


def queue_waiting_runs(entry: Entry, release: Blob, passed: bool | None) -> None:
    """Queue the runs that wait for the smoke run. After a failure they wait until a maintainer approves again."""
    waiting = entry.runs.select_related("entry", "track", "season").filter(state=Run.State.WAITING)
    if passed is False:
        reason = f"Approved, but its smoke run failed: {entry.smoke_sentence} Approve it again to train it anyway."
        waiting.update(reason=reason[:500], revision=F("revision") + 1)
        return
    for run in waiting:
        runs.queue_run(run, release=release)
