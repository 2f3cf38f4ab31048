"""Jobs of kind `generate`: a trusted node completes a visitor's prompt with the model of a run.

The completion is untrusted text of an untrusted model: stored with a limited length, and shown as plain text.
"""

from __future__ import annotations

import ipaddress
import math
import secrets
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from django.conf import settings
from django.db import transaction
from django.utils import timezone
from pydantic import ValidationError

from leaderboard import graphs, run_jobs, runs
from leaderboard.models import Entry, Generation, Run, Track
from leaderboard.sanitize import sanitize_text
from scheduler import rate_limits, storage
from scheduler import transitions as jobs
from scheduler.estimates import QueueEstimates, StartEstimate
from scheduler.job_kinds import JobKind, JobSummary
from scheduler.models import SITE_ACTOR, Blob, Job, Lease
from trainer import protocol
from trainer.protocol.files import RUN_FILE

EXPECTED_SECONDS = 20.0
MAX_WAIT = timedelta(hours=1)  # then a prompt that no node has claimed is cancelled
RETENTION = timedelta(days=7)
MAX_PROMPT = 1000  # characters
MAX_TOKENS = 400
MAX_TEXT = 20_000  # characters of a completion: about ten times those of MAX_TOKENS
OUTPUT_BYTES = 2**26  # of text and log
AUTHOR = "visitors"  # in the fair share of the pool


class GenerationError(ValueError):
    """The prompt was refused; the message is for the visitor.

    `status`: of the HTTP response. `retry_after`: seconds until a retry may succeed, 0 if unknown.
    """

    def __init__(self, message: str, *, status: int = 429, retry_after: int = 0) -> None:
        super().__init__(message)
        self.status = status
        self.headers = {"Retry-After": str(retry_after)} if retry_after else {}


@dataclass(frozen=True)
class Prompt:
    prompt: str
    tokens: int = 150
    temperature: float = 0.8


def is_open() -> bool:
    return settings.GENERATE_PER_HOUR > 0


def can_generate(run: Run) -> bool:
    """Whether the run has weights to generate with. No query."""
    return run.state == Run.State.FINISHED and run.checkpoint_id is not None and run.job_id is not None


def list_generating_runs() -> Any:
    finished = Run.objects.with_entry().filter(state=Run.State.FINISHED, checkpoint__isnull=False, job__isnull=False)
    return finished.exclude(entry__kind=Entry.Kind.NOTEBOOK).order_by("bits_per_byte", "pk")


def get_best_run(track: Track | None) -> Run | None:
    """Return the run of the track's board with the fewest bits per byte."""
    if track is None:
        return None
    runs = list_generating_runs().filter(track=track, season=track.season_id, budget=track.budget)
    return runs.exclude(trust=Run.Trust.DISPUTED).first()  # type: ignore[no-any-return]


def estimate_generation_start(run: Run) -> StartEstimate:
    return QueueEstimates(timezone.now()).estimate_if_queued(Job(**build_generation_job(run, None)))


def queue_generation(run: Run, prompt: Prompt, visitor: str, *, release: Blob | None = None) -> Generation:
    """Queue a prompt and return its row. `visitor`: a user name or IP address. Raise GenerationError."""
    if not can_generate(run):
        raise GenerationError(f"Run {run.pk} has no weights: only a finished run can generate text.", status=409)
    return create_generation(
        run, prompt, visitor, lambda: build_generation_job(run, release or storage.store_release())
    )


def create_generation(run: Run, prompt: Prompt, visitor: str, build_job: Callable[[], dict[str, Any]]) -> Generation:
    """Check the rate limits, then create the job with these fields and the prompt's row. Raise GenerationError."""
    if not is_open():
        raise GenerationError("This site does not accept prompts at present.", status=503)
    check_rate_limits(visitor)
    fields = build_job()
    with transaction.atomic():
        job = Job.objects.create(**fields)
        return Generation.objects.create(
            run=run,
            job=job,
            prompt=sanitize_text(prompt.prompt, MAX_PROMPT),
            tokens=min(prompt.tokens, MAX_TOKENS),
            temperature=prompt.temperature,
            seed=secrets.randbelow(runs.SEEDS),
        )


def check_rate_limits(visitor: str) -> None:
    now = timezone.now()
    if Generation.objects.unanswered().count() >= settings.GENERATE_WAITING:
        raise GenerationError("Too many prompts are waiting for a node. Try again in a few minutes.", retry_after=180)
    if Generation.objects.since(now - timedelta(hours=1)).count() >= settings.GENERATE_PER_HOUR:
        message = "The site's limit of prompts for this hour is reached. Try again in the next hour."
        raise GenerationError(message, retry_after=3600)
    for limit in ("generate-burst", "generate"):
        if not rate_limits.is_within_rate_limit(limit, visitor):
            seconds = rate_limits.get_retry_after(limit)
            message = f"Too many prompts in a short time. Try again in {math.ceil(seconds / 60)} min."
            raise GenerationError(message, retry_after=seconds)


def get_visitor_network(address: str) -> str:
    """Return the key of a visitor's rate limit: the IPv4 address, or the /64 network of an IPv6 address."""
    try:
        parsed = ipaddress.ip_address(address)
    except ValueError:
        return address
    return str(ipaddress.ip_network((parsed, 64), strict=False)) if parsed.version == 6 else address


def build_generation_job(run: Run, release: Blob | None) -> dict[str, Any]:
    """Return the fields of the job: short, urgent, and for nodes that may score the run.

    Without a release they are good for estimates only.
    """
    assert run.checkpoint is not None, "checked by can_generate"
    manifest = protocol.Checkpoint.model_validate(run.checkpoint.manifest)
    weights = sum(file.size for file in manifest.files)
    training = run.track.training_limits()
    limits = protocol.JobLimits(
        wall_seconds=settings.GENERATE_SECONDS,
        memory_bytes=training.memory_bytes,
        disk_bytes=OUTPUT_BYTES,
        processes=training.processes,
    )
    return {
        **run_jobs.get_scoring_needs(run, limits, run.season.get_dataset_bytes("test")),
        "kind": "generate",
        "priority": Job.Priority.SCORE,
        "expected_seconds": EXPECTED_SECONDS,
        "author": AUTHOR,
        "from_core": False,
        "needs_trusted": True,
        **run_jobs.get_code(run),
        "needs_disk_bytes": OUTPUT_BYTES + weights,
        "max_attempts": 2,
        "not_after": timezone.now() + MAX_WAIT,
        "release": release,
        "limits": limits.model_dump(),
    }


def expire_generations() -> None:
    """Cancel prompts that no node has claimed in time, and delete old ones. Idempotent."""
    now = timezone.now()
    for generation in Generation.objects.unanswered().select_related("job").filter(created_at__lt=now - MAX_WAIT):
        jobs.cancel_job(generation.job, SITE_ACTOR, "No node was free within an hour. Try again.")
    outdated = Generation.objects.outdated(now, RETENTION)
    for generation in outdated.exclude(job__state__in=jobs.FINAL_STATES).select_related("job"):
        jobs.cancel_job(generation.job, SITE_ACTOR, "It is too old.")
    outdated.delete()


class GenerationHandler(JobKind):
    """Jobs of kind `generate`. A row may be deleted before its job is over; then results are ignored."""

    def build_order(self, job: Job, resume: protocol.Checkpoint | None) -> protocol.GenerateOrder:
        generation = Generation.objects.select_related("run__season", "run__checkpoint", "run__graph__job").get(job=job)
        run = generation.run
        run_file = run.get_run_file()
        assert run.checkpoint is not None, "checked by can_generate"
        assert run_file is not None, f"run {run.pk} has lost its {RUN_FILE}"
        return protocol.GenerateOrder(
            dataset=run.season.dataset(),
            run=storage.build_file_reference(run_file.blob, RUN_FILE),
            checkpoint=protocol.Checkpoint.model_validate(run.checkpoint.manifest),
            graph=graphs.build_order_files(run.graph),
            prompt=generation.prompt,
            tokens=generation.tokens,
            temperature=generation.temperature,
            seed=generation.seed,
        )

    def handle_lease(self, job: Job, lease: Lease) -> None:
        Generation.objects.filter(job=job).update(text="")  # another node starts over

    def handle_metrics(self, job: Job, rows: Sequence[dict[str, Any]]) -> None:
        texts = (row["text"] for row in rows if row.get("kind") == "text" and isinstance(row.get("text"), str))
        text = "".join(sanitize_text(text, MAX_TEXT) for text in texts)
        generation = Generation.objects.filter(job=job).first()
        if text and generation is not None:
            generation.text = (generation.text + text)[:MAX_TEXT]
            generation.save(update_fields=["text"])

    def handle_done(self, job: Job, result: dict[str, Any]) -> None:
        try:
            found = protocol.GenerateResult.model_validate(result)
        except ValidationError:
            return  # the text has arrived; the numbers are optional
        Generation.objects.filter(job=job).update(written=found.tokens, seconds=found.seconds, ended=found.ended)

    def describe_jobs(self, jobs: Sequence[Job]) -> dict[int, JobSummary]:
        return {
            row.job_id: JobSummary(f"{row.run.entry.title}, visitor prompt", row.run.get_absolute_url())
            for row in Generation.objects.filter(job__in=jobs).select_related("run__entry")
        }
