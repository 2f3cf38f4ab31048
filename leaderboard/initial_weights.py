"""Initial weights: a run can start from the final weights, or a checkpoint, of another run.

A track names that run (fine-tuning, surgery), or a rewind does. Weights are kept while a row refers to them.
"""

from __future__ import annotations

from django.db import transaction

from leaderboard.models import Run
from scheduler import storage
from scheduler.models import Checkpoint
from trainer import protocol
from trainer.protocol.files import RUN_FILE


def get_initial_weights(run: Run) -> protocol.BaseWeights | None:
    """Return the files with which the run starts; None: it starts from scratch. Raises ValueError if they are gone."""
    start = run.start_run
    if start is None:
        return None
    about, checkpoint = start.get_run_file(), run.start_checkpoint or start.checkpoint
    if checkpoint is None or checkpoint.files_deleted_at is not None or about is None:
        raise ValueError(f"The weights of run {start.pk} are gone.")
    return protocol.BaseWeights(
        name=f"run-{start.pk}",
        run=storage.build_file_reference(about.blob, RUN_FILE),
        checkpoint=protocol.Checkpoint.model_validate(checkpoint.manifest),
    )


def list_steps(run: Run) -> list[int]:
    """Return the steps of a run's checkpoints with files and of its milestones, the last one first."""
    stored = Checkpoint.objects.with_files().filter(job=run.job_id)
    checkpoints = stored.values_list("step", flat=True) if run.job_id else ()
    return sorted({*checkpoints, *run.publications.values_list("step", flat=True)}, reverse=True)


def get_checkpoint_at(run: Run, step: int) -> Checkpoint:
    """Return the checkpoint of a step, or else one with the weights of a milestone. Raises ValueError."""
    if run.job_id is None:
        raise ValueError(f"Run {run.pk} has no checkpoint of step {step}.")
    found = Checkpoint.objects.with_files().filter(job=run.job_id, step=step).order_by("from_milestone").first()
    if found is not None:
        return found
    with transaction.atomic():
        # Locked, so that its deletion does not take the files away meanwhile.
        milestone = run.publications.select_for_update().filter(step=step).first()
        if milestone is None:
            raise ValueError(f"Run {run.pk} has no checkpoint of step {step}.")
        weights, _ = Checkpoint.objects.get_or_create(
            job_id=run.job_id, step=step, from_milestone=True, defaults={"manifest": milestone.manifest}
        )
        weights.blobs.set(milestone.blobs.all())
    return weights
