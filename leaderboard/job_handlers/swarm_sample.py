"""Jobs of kind `swarm_sample`: a trusted node asks a running swarm to continue a visitor's prompt.

Like `generate`, with the same limits, but no weights travel: the swarm's stages compute each token.
"""

from __future__ import annotations

from typing import Any

from django.conf import settings
from django.utils import timezone

from leaderboard import run_jobs
from leaderboard.job_handlers.generation import (
    AUTHOR,
    EXPECTED_SECONDS,
    MAX_WAIT,
    OUTPUT_BYTES,
    GenerationError,
    GenerationHandler,
    Prompt,
    create_generation,
)
from leaderboard.models import Generation, Run, Swarm
from scheduler import storage
from scheduler.models import Blob, Job
from trainer import protocol
from trainer.swarm.credentials import SAMPLE_PREFIX, make_credential

MEMORY_BYTES = 4 * 2**30  # The process has no model. Importing torch reserves the most.


def can_sample(swarm: Swarm) -> bool:
    """Whether a coordinator leads the run, so that its model can be sampled."""
    return swarm.run.state == Run.State.TRAINING and bool(swarm.addresses)


def queue_sample(swarm: Swarm, prompt: Prompt, visitor: str, *, release: Blob | None = None) -> Generation:
    """Queue a prompt for a swarm and return its row. Raise GenerationError."""
    if not can_sample(swarm):
        message = "No machines are training this run now, so its model cannot be tried. Try again later."
        raise GenerationError(message, status=409)
    return create_generation(
        swarm.run, prompt, visitor, lambda: build_sample_job(swarm.run, release or storage.store_release())
    )


def build_sample_job(run: Run, release: Blob) -> dict[str, Any]:
    """Return the fields of the job: short, urgent, for trusted nodes with the extra `swarm`, and without a GPU."""
    training = run.track.training_limits()
    limits = training.model_copy(
        update={
            "wall_seconds": settings.GENERATE_SECONDS,
            "memory_bytes": min(training.memory_bytes, MEMORY_BYTES),
            "disk_bytes": OUTPUT_BYTES,
        }
    )
    return {
        **run_jobs.get_scoring_needs(run, limits, 0),
        "kind": "swarm_sample",
        "priority": Job.Priority.SCORE,
        "expected_seconds": EXPECTED_SECONDS,
        "author": AUTHOR,
        "from_core": False,
        "needs_trusted": True,
        "needs_sandbox": False,  # it runs no entry's code, and it needs the network
        "needs_gpus": 0,
        "needs_gpu_memory_bytes": 0,
        "max_attempts": 2,
        "not_after": timezone.now() + MAX_WAIT,
        "release": release,
        "limits": run_jobs.get_swarm_limits(limits).model_dump(),
    }


class SwarmSampleHandler(GenerationHandler):
    def build_order(  # type: ignore[override]
        self, job: Job, resume: protocol.Checkpoint | None
    ) -> protocol.SwarmSampleOrder:
        generation = Generation.objects.select_related("run__swarm").get(job=job)
        swarm, label = generation.run.swarm, f"{SAMPLE_PREFIX}{job.pk}"
        return protocol.SwarmSampleOrder(
            run=generation.run_id,
            coordinator=tuple(swarm.addresses),
            label=label,
            credential=make_credential(swarm.secret, label),
            prompt=generation.prompt,
            tokens=generation.tokens,
            temperature=generation.temperature,
            seed=generation.seed,
        )
