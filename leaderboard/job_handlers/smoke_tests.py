"""Smoke runs: a few minutes on a CPU that find most mistakes, before anything trains on a GPU.

The entry waits in the state `smoke` meanwhile and is `proposed` again afterwards, with what was found on its row. One
that was approved before stays so, and its runs wait for the smoke run to pass.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from django.conf import settings
from django.db import transaction
from django.db.models import F
from pydantic import ValidationError

from leaderboard import runs
from leaderboard.models import Entry, Run, Track
from leaderboard.sanitize import plain_json, plain_text
from scheduler import matching, storage
from scheduler import transitions as jobs
from scheduler.job_kinds import JobKind, JobSummary
from scheduler.models import Blob, Checkpoint, Event, Job, Lease
from trainer import protocol
from trainer.accounting import peak_flops

EXPECTED_SECONDS = 90.0
LIMITS = protocol.JobLimits(wall_seconds=900, memory_bytes=4 * 2**30, disk_bytes=2**30, processes=64)
OPEN_STATES = (Entry.State.PROPOSED, Entry.State.SMOKE, Entry.State.APPROVED)
SMOKE_KINDS = (Entry.Kind.ARCHITECTURE, Entry.Kind.OPEN)
"""What has an architecture that nobody has reviewed."""


def is_running(entry: Entry) -> bool:
    """Whether its smoke run has been asked for and is not over."""
    return entry.smoke_job is not None and entry.smoke_job.state not in jobs.FINAL_STATES


def is_due(entry: Entry) -> bool:
    """Whether the entry has to pass one before it trains: it comes from a pull request, and had none."""
    return entry.pull_request_id is not None and entry.kind in SMOKE_KINDS and entry.smoke_job_id is None


def can_run_unapproved(entry: Entry) -> bool:
    """Whether the entry's code may run before a maintainer has looked at it (SECURITY.md).

    The setting: "nobody" trusts only what was approved, "known" also whoever is signed in, or has had an entry
    approved in the same repository before, "anyone" everybody.
    """
    if entry.state == Entry.State.APPROVED or settings.SMOKE_UNAPPROVED == "anyone":
        return True
    return settings.SMOKE_UNAPPROVED == "known" and (entry.requested_by_id is not None or is_known(entry))


def is_known(entry: Entry) -> bool:
    """Whether GitHub vouches that the author is one whose code was approved before. A name in a commit is no proof."""
    author = entry.pull_request.author_id if entry.pull_request else None
    approved = Entry.objects.exclude(approved_at=None).filter(pull_request__author_id=author)
    return author is not None and approved.exists()


def queue_smoke_test(
    entry: Entry, *, actor: str = runs.SITE, vouched: bool = False, release: Blob | None = None
) -> Job | None:
    """Queue a smoke run of the entry and return its job; None where there is none to be.

    There is none while one is under way (its job is `entry.smoke_job`), for `main`, for an entry that is closed or has
    nothing to smoke, and for code that may not run unlooked at (`may_begin`) and is not `vouched` for: a maintainer
    asks for exactly this commit.
    """
    if entry.bundle_id is None or entry.kind not in SMOKE_KINDS or not (vouched or can_run_unapproved(entry)):
        return None
    release = release or storage.store_release()
    with transaction.atomic():
        entry = Entry.objects.select_for_update(of=("self",)).select_related("track", "smoke_job").get(pk=entry.pk)
        if is_running(entry) or entry.state not in OPEN_STATES:
            return None
        job = Job.objects.create(**build_smoke_job(entry, release))
        Entry.objects.filter(pk=entry.pk, state=Entry.State.PROPOSED).update(state=Entry.State.SMOKE)
        Entry.objects.filter(pk=entry.pk).update(smoke_job=job, smoke={}, smoke_sentence="")
        Event.record(actor, entry, f"Smoke run of commit {entry.sha[:8]} queued.")
    return job


def build_smoke_job(entry: Entry, release: Blob) -> dict[str, Any]:
    """Return the job. What nobody has approved runs only where a maintainer trusts the node, and its sandbox."""
    return {
        "kind": "smoke",
        "priority": Job.Priority.SCORE,  # short, and somebody waits for it
        "impact": entry.impact,
        "expected_seconds": EXPECTED_SECONDS,
        "author": entry.author,
        "needs_sandbox": True,
        "needs_trusted": entry.state != Entry.State.APPROVED,
        "track": entry.track.slug,
        "from_core": runs.is_core(entry),
        "max_attempts": 3,
        "needs_memory_bytes": LIMITS.memory_bytes,
        "needs_disk_bytes": LIMITS.disk_bytes,
        "release": release,
        "entry": entry.bundle,
        "limits": LIMITS.model_dump(),
    }


def cancel_smoke_test(entry: Entry, reason: str, actor: str) -> None:
    """Stop its smoke run, if one is under way: nobody waits for it any more."""
    if entry.smoke_job is not None:
        jobs.cancel_job(entry.smoke_job, actor, reason)


# --- what came of it -------------------------------------------------------------------------------------------------


class SmokeTestHandler(JobKind):
    """Jobs of kind `smoke`."""

    def build_order(self, job: Job, resume: protocol.Checkpoint | None) -> protocol.SmokeOrder:
        entry = Entry.objects.select_related("track__season").get(smoke_job=job)
        track = entry.track
        asked = matching.parse_labels(tuple(track.needs_labels))
        gpus = asked.gpus or any(matching.MODEL_LABEL.fullmatch(label) for label in asked.names)
        site = {"arch": entry.architecture, "budget": track.budget}
        return protocol.SmokeOrder(
            config=runs.merge_configs({"device": "cuda"} if gpus else {}, track.config, entry.config, site),
            tokenizer=track.season.tokenizer,
            memory_bytes=get_memory_bytes(track, asked),
            peak=get_peak_flops(asked),
        )

    def handle_lease(self, job: Job, lease: Lease) -> None:
        """Nothing: it is over in a minute or two."""

    def handle_metrics(self, job: Job, rows: Sequence[dict[str, Any]]) -> None:
        """Nothing: it has no curve."""

    def handle_checkpoint(self, job: Job, checkpoint: Checkpoint) -> None:
        """Nothing: it leaves no checkpoint."""

    def handle_requeue(self, job: Job, reason: str) -> None:
        """Nothing: another node begins it anew."""

    def handle_done(self, job: Job, result: dict[str, Any]) -> None:
        try:
            found = protocol.SmokeResult.model_validate(result)
        except ValidationError:
            record_outcome(job, None, "The smoke run's answer cannot be right; it says nothing about this commit.")
            return
        numbers = plain_json(found.model_dump(mode="json"))
        record_outcome(job, found.passed, found.sentence, numbers)

    def handle_failure(self, job: Job, cause: protocol.Cause, reason: str) -> None:
        if cause == "model":
            record_outcome(job, False, reason)
        else:
            record_outcome(
                job, None, f"The smoke run could not be made, which says nothing about this commit: {reason}"
            )

    def handle_cancellation(self, job: Job, reason: str) -> None:
        record_outcome(job, None, f"The smoke run was cancelled: {reason}")

    def describe_jobs(self, jobs: Sequence[Job]) -> dict[int, JobSummary]:
        entries = Entry.objects.filter(smoke_job__in=jobs)
        return {
            entry.smoke_job_id: JobSummary(
                f"Smoke run of {entry.title}", entry.get_absolute_url(), entry.smoke_sentence
            )
            for entry in entries
            if entry.smoke_job_id is not None
        }


def get_memory_bytes(track: Track, asked: matching.LabelNeeds) -> float | None:
    """Return the memory of the machines that a track is for; None where its labels do not say."""
    if asked.gpus:
        return float(asked.gpus * asked.gpu_memory_bytes)
    named = any(matching.MODEL_LABEL.fullmatch(label) for label in asked.names)
    return None if named else float(track.training_limits().memory_bytes)


def get_peak_flops(asked: matching.LabelNeeds) -> float | None:
    """Return the FLOP/s of the machines that labels like `1xh100` or `2x3090` name; None where none does."""
    for label in asked.names:
        if found := matching.MODEL_LABEL.fullmatch(label):
            name = found[2].upper()
            figure = peak_flops.lookup_peak_flops(name) or peak_flops.lookup_peak_flops(f"RTX {name}")
            if figure is not None:
                return figure * int(found[1])
    return None


def record_outcome(job: Job, passed: bool | None, sentence: str, numbers: dict[str, Any] | None = None) -> None:
    """Write down what was found, and let an approved entry's runs go on; `passed`: None says nothing about it.

    Bring the transaction that ends the job.
    """
    sentence = plain_text(sentence, 500)
    smoke = {**(numbers or {}), "passed": passed}
    if not Entry.objects.filter(smoke_job=job).update(smoke=smoke, smoke_sentence=sentence):
        return  # another one has been begun since
    Entry.objects.filter(smoke_job=job, state=Entry.State.SMOKE).update(state=Entry.State.PROPOSED)
    entry = Entry.objects.get(smoke_job=job)
    verdict = {True: "passed", False: "failed", None: "without a verdict"}[passed]
    Event.record(runs.SITE, entry, f"Smoke run {verdict}: {sentence}")
    if entry.state == Entry.State.APPROVED:
        queue_waiting_runs(entry, job.release, passed)


def queue_waiting_runs(entry: Entry, release: Blob, passed: bool | None) -> None:
    """Queue the runs that waited for it. After a failure they go on waiting: a maintainer approves again, knowing."""
    waiting = entry.runs.select_related("entry", "track", "season").filter(state=Run.State.WAITING)
    if passed is False:
        reason = (
            f"Approved, and its smoke run failed: {entry.smoke_sentence} Approving it again trains it all the same."
        )
        waiting.update(reason=reason[:500], revision=F("revision") + 1)
        return
    for run in waiting:
        runs.queue_run(run, release=release)
