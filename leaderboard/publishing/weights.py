"""Downloadable files of a run: its weights, and the files to load them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import PurePosixPath

from django.urls import reverse

from leaderboard.graphs import FOLDER
from leaderboard.initial_weights import RUN_FILE
from leaderboard.models import Publication, Run
from leaderboard.models.publications import FINAL
from scheduler.models import Blob, Checkpoint, JobFile
from trainer.protocol import GRAPH_FILES

WEIGHTS = "model.safetensors"
CHECKPOINT_FILES = (WEIGHTS, "state.json", "manifest.json")
"""Files of a checkpoint without the optimizer state, which is larger."""
TOKENIZER_FILES = ("tokenizer.json", "tokenizer.txt")
SOURCE = "source.tar"
"""The entry's own `trainer/models/`."""


@dataclass(frozen=True)
class WeightFile:
    """A downloadable file."""

    path: str
    """In the folder of the run, as `dailytrain` reads it."""
    blob: Blob
    url: str


def list_weight_files(run: Run, name: str = FINAL) -> list[WeightFile]:
    """Return the files of a run's final weights, or of one of its releases; none while there are none."""
    files = dict(find_weight_blobs(run, name))
    return [
        WeightFile(path, blob, reverse("run-weights", args=[run.pk, name, path]))
        for path, blob in sorted(files.items())
    ]


def find_weight_blobs(run: Run, name: str) -> Iterator[tuple[str, Blob]]:
    """Yield (path, file) pairs."""
    publication = run.publications.filter(name=name).first()
    if publication is not None:
        step, blobs = publication.step, get_checkpoint_blobs(publication)
    elif name == FINAL and run.state == Run.State.FINISHED and run.checkpoint is not None:
        step, blobs = run.checkpoint.step, get_checkpoint_blobs(run.checkpoint)
    else:
        return
    for file, blob in blobs.items():
        yield f"checkpoints/step-{step:08d}/{file}", blob
    yield from find_companion_files(run, run.score_job_id or (publication.score_job_id if publication else None))


def get_checkpoint_blobs(checkpoint: Checkpoint | Publication) -> dict[str, Blob]:
    """Return a checkpoint's downloadable files by name. Names in its manifest are untrusted node input."""
    blobs = {blob.sha256: blob for blob in checkpoint.blobs.all()}
    files = {PurePosixPath(str(file["path"])).name: str(file["sha256"]) for file in checkpoint.manifest["files"]}
    return {name: blobs[files[name]] for name in CHECKPOINT_FILES if files.get(name) in blobs}


def find_companion_files(run: Run, score_job: int | None) -> Iterator[tuple[str, Blob]]:
    """Yield the other files. The tokenizer comes from the scorer, whose node is trusted."""
    wanted = JobFile.objects.select_related("blob")
    for file in wanted.filter(job=run.job_id, path=RUN_FILE):
        yield RUN_FILE, file.blob
    for file in wanted.filter(job=score_job, path__in=TOKENIZER_FILES):
        yield file.path, file.blob
    if run.graph is not None:
        for file in wanted.filter(job=run.graph.job_id, path__in=[f"{FOLDER}/{name}" for name in GRAPH_FILES]):
            yield file.path, file.blob
    if run.entry.bundle is not None:
        yield SOURCE, run.entry.bundle
