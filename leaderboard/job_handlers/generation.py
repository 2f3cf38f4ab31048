"""Try it: a visitor's prompt becomes a row and a job, a trusted node's sandbox writes on, and its words come in.

What is written is strangers' text, by a stranger's model: it is kept as text, of limited length, and shown as text.
"""

from __future__ import annotations

import ipaddress
import secrets
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from django.conf import settings
from django.db import transaction
from django.utils import timezone
from pydantic import ValidationError

from leaderboard import initial_weights, runs
from leaderboard.models import Entry, Generation, Run, Track
from leaderboard.sanitize import plain_text
from scheduler import rate_limits, storage
from scheduler import transitions as jobs
from scheduler.estimates import QueueEstimates, StartEstimate
from scheduler.job_kinds import JobKind, JobSummary
from scheduler.models import Blob, Checkpoint, Job, Lease
from trainer import protocol

EXPECTED_SECONDS = 20.0
MAX_WAIT = timedelta(hours=1)
"""A prompt that no node has taken by then is given up: nobody looks any more."""
RETENTION = timedelta(days=7)
MAX_PROMPT = 1000
"""Characters."""
MAX_TOKENS = 400
MAX_TEXT = 20_000
"""Characters of an answer: about ten times what that many tokens come to."""
OWN_DISK_BYTES = 2**26
"""The text, the log: the job itself writes no more."""
AUTHOR = "visitors"
"""Whose share of the pool all of it is."""


class GenerationError(ValueError):
    """The prompt was not taken; the message is a sentence for whoever typed it."""


@dataclass(frozen=True)
class Prompt:
    """What is asked of a run's model."""

    prompt: str
    tokens: int = 150
    temperature: float = 0.8


# --- whom can be asked -----------------------------------------------------------------------------------------------


def is_open() -> bool:
    return settings.GENERATE_PER_HOUR > 0


def can_generate(run: Run) -> bool:
    """Whether there are weights to ask. No query."""
    return run.state == Run.State.FINISHED and run.checkpoint_id is not None and run.job_id is not None


def list_generating_runs() -> Any:
    """Return the runs whose models can be asked, best first."""
    finished = Run.objects.with_entry().filter(state=Run.State.FINISHED, checkpoint__isnull=False, job__isnull=False)
    return finished.exclude(entry__kind=Entry.Kind.NOTEBOOK).order_by("bits_per_byte", "pk")


def get_best_run(track: Track | None) -> Run | None:
    """Return the run of the track's board with the fewest bits per byte: that whose text reads best."""
    if track is None:
        return None
    ours = list_generating_runs().filter(track=track, season=track.season_id, budget=track.budget)
    return ours.exclude(trust=Run.Trust.DISPUTED).first()  # type: ignore[no-any-return]


def estimate_generation_start(run: Run) -> StartEstimate:
    """Return what could be said of a prompt for this run, were it asked now."""
    return QueueEstimates(timezone.now()).estimate_if_queued(Job(**build_generation_job(run, None)))


# --- asking ----------------------------------------------------------------------------------------------------------


def queue_generation(run: Run, question: Prompt, visitor: str, *, release: Blob | None = None) -> Generation:
    """Queue a prompt and return its row. `visitor`: a user's name or an address. Raise NotNow."""
    if not is_open():
        raise GenerationError("This site does not let visitors write at present.")
    if not can_generate(run):
        raise GenerationError(f"Run {run.pk} has no weights to ask: only a run that has arrived can write.")
    check_rate_limits(visitor)
    release = release or storage.store_release()
    with transaction.atomic():
        job = Job.objects.create(**build_generation_job(run, release))
        return Generation.objects.create(
            run=run,
            job=job,
            prompt=plain_text(question.prompt, MAX_PROMPT),
            tokens=min(question.tokens, MAX_TOKENS),
            temperature=question.temperature,
            seed=secrets.randbelow(runs.SEEDS),
        )


def check_rate_limits(visitor: str) -> None:
    """Raise NotNow where this visitor, or all of them together, have asked enough."""
    now = timezone.now()
    if Generation.objects.unanswered().count() >= settings.GENERATE_WAITING:
        raise GenerationError(
            "Many prompts wait for a machine already. Nothing was queued; please come back in some minutes."
        )
    if Generation.objects.since(now - timedelta(hours=1)).count() >= settings.GENERATE_PER_HOUR:
        raise GenerationError(
            "The models have written enough for this hour. Nothing was queued; please come back in the next."
        )
    if not (
        rate_limits.is_within_rate_limit("generate-burst", visitor)
        and rate_limits.is_within_rate_limit("generate", visitor)
    ):
        raise GenerationError(
            "That was a lot of prompts in a short time. Nothing was queued; please wait a few minutes."
        )


def get_visitor_network(address: str) -> str:
    """Return what counts as one visitor: an address, of IPv6 the network that one household has."""
    try:
        parsed = ipaddress.ip_address(address)
    except ValueError:
        return address
    return str(ipaddress.ip_network((parsed, 64), strict=False)) if parsed.version == 6 else address


def build_generation_job(run: Run, release: Blob | None) -> dict[str, Any]:
    """Return the job: short, somebody waits for it, and it goes where the run may be scored.

    Without a release it is one that is only thought of.
    """
    assert run.checkpoint is not None, "whoever can write has a checkpoint"
    manifest = protocol.Checkpoint.model_validate(run.checkpoint.manifest)
    weights = sum(file.size for file in manifest.files)  # the optimizer's part, too, which the node does not fetch
    training = run.track.training_limits()
    limits = protocol.JobLimits(
        wall_seconds=settings.GENERATE_SECONDS,
        memory_bytes=training.memory_bytes,
        disk_bytes=OWN_DISK_BYTES,
        processes=training.processes,
    )
    now = timezone.now()
    return {
        **runs.get_scoring_needs(run, limits),
        "kind": "generate",
        "priority": Job.Priority.SCORE,
        "expected_seconds": EXPECTED_SECONDS,
        "author": AUTHOR,
        "from_core": False,
        "needs_trusted": True,
        "needs_sandbox": runs.needs_sandbox(run),
        "needs_disk_bytes": OWN_DISK_BYTES + weights,
        "max_attempts": 2,
        "not_after": now + MAX_WAIT,
        "release": release,
        "entry": run.entry.bundle,
        "limits": limits.model_dump(),
    }


def expire_generations() -> None:
    """Cancel what no node has taken in time, and forget what is too old. Safe to run at any time."""
    now = timezone.now()
    for generation in Generation.objects.unanswered().select_related("job").filter(created_at__lt=now - MAX_WAIT):
        jobs.cancel_job(generation.job, runs.SITE, "No machine was free for it within an hour. You may ask again.")
    outdated = Generation.objects.outdated(now, RETENTION)
    for generation in outdated.exclude(job__state__in=jobs.FINAL_STATES).select_related("job"):
        jobs.cancel_job(generation.job, runs.SITE, "It is too old.")
    outdated.delete()


# --- what came of it -------------------------------------------------------------------------------------------------


class GenerationHandler(JobKind):
    """Jobs of kind `generate`. A row may be forgotten before its job is over: then what comes is for nobody."""

    def build_order(self, job: Job, resume: protocol.Checkpoint | None) -> protocol.GenerateOrder:
        generation = Generation.objects.select_related("run__season", "run__checkpoint").get(job=job)
        run = generation.run
        about = initial_weights.get_run_file(run)
        assert run.checkpoint is not None, "whoever can write has a checkpoint"
        assert about is not None, f"run {run.pk} has lost its {initial_weights.RUN_FILE}"
        return protocol.GenerateOrder(
            dataset=run.season.dataset(),
            run=storage.build_file_reference(about.blob, initial_weights.RUN_FILE),
            checkpoint=protocol.Checkpoint.model_validate(run.checkpoint.manifest),
            prompt=generation.prompt,
            tokens=generation.tokens,
            temperature=generation.temperature,
            seed=generation.seed,
        )

    def handle_lease(self, job: Job, lease: Lease) -> None:
        Generation.objects.filter(job=job).update(text="")  # another node begins anew

    def handle_metrics(self, job: Job, rows: Sequence[dict[str, Any]]) -> None:
        texts = (row["text"] for row in rows if row.get("kind") == "text" and isinstance(row.get("text"), str))
        said = "".join(plain_text(text, MAX_TEXT) for text in texts)
        generation = Generation.objects.filter(job=job).first()
        if said and generation is not None:
            generation.text = (generation.text + said)[:MAX_TEXT]
            generation.save(update_fields=["text"])

    def handle_checkpoint(self, job: Job, checkpoint: Checkpoint) -> None:
        """Nothing: it leaves no checkpoint."""

    def handle_requeue(self, job: Job, reason: str) -> None:
        """Nothing: another node begins it anew."""

    def handle_done(self, job: Job, result: dict[str, Any]) -> None:
        try:
            found = protocol.GenerateResult.model_validate(result)
        except ValidationError:
            return  # the text is here; how much and how fast is not worth a failure
        Generation.objects.filter(job=job).update(written=found.tokens, seconds=found.seconds, ended=found.ended)

    def handle_failure(self, job: Job, cause: protocol.Cause, reason: str) -> None:
        """Nothing: the job says so, and its reason."""

    def handle_cancellation(self, job: Job, reason: str) -> None:
        """Nothing, as well."""

    def describe_jobs(self, jobs: Sequence[Job]) -> dict[int, JobSummary]:
        asked = Generation.objects.filter(job__in=jobs).select_related("run__entry")
        return {
            one.job_id: JobSummary(f"{one.run.entry.title}, writing for a visitor", one.run.get_absolute_url())
            for one in asked
        }
