"""Downloadable files of a run: its weights, and the files to load them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import PurePosixPath
from typing import Any

from leaderboard.graphs import FOLDER
from leaderboard.models import Publication, Run
from leaderboard.models.publications import FINAL
from leaderboard.run_jobs import is_notebook
from scheduler import storage
from scheduler.models import Blob, Checkpoint, JobFile
from trainer.protocol import GRAPH_FILES
from trainer.protocol.files import (
    RUN_FILE,
    STATE_FILE,
    WEIGHTS_FILE,
    WEIGHTS_INDEX,
    build_checkpoint_path,
    is_weights_file,
)

MANIFEST = "manifest.json"
NOTEBOOK_MODEL = "model/"
TOKENIZER_FILES = ("tokenizer.json", "tokenizer.txt")
SOURCE = "source.tar"
"""The entry's own `trainer/models/`."""


def find_weight_blobs(run: Run, name: str) -> Iterator[tuple[str, Blob]]:
    """Yield (path, file) pairs."""
    if name == FINAL and is_notebook(run):
        yield from ((file.path, file.blob) for file in list_notebook_model(run))
        return
    publication = run.publications.filter(name=name).first()
    if publication is not None:
        step, blobs = publication.step, get_checkpoint_blobs(publication)
    elif name == FINAL and run.state == Run.State.FINISHED and run.checkpoint is not None:
        step, blobs = run.checkpoint.step, get_checkpoint_blobs(run.checkpoint)
    else:
        return
    for file, blob in blobs.items():
        yield f"{build_checkpoint_path(step)}/{file}", blob
    yield from find_companion_files(run, run.score_job_id or (publication.score_job_id if publication else None))


def list_notebook_model(run: Run) -> list[JobFile]:
    """Return the files that the last part of a finished notebook run left in `model/`."""
    last = run.parts.order_by("-number").first() if run.state == Run.State.FINISHED else None
    files = JobFile.objects.select_related("blob").filter(path__startswith=NOTEBOOK_MODEL).order_by("path")
    return list(files.filter(job=last.job_id)) if last else []


def find_final_weights(run: Run) -> tuple[dict[str, Any], list[Blob]] | None:
    """Return manifest and files of a finished run's final weights, or of a notebook's model; None if there are none."""
    if run.state == Run.State.FINISHED and run.checkpoint is not None:
        return run.checkpoint.manifest, list(get_checkpoint_blobs(run.checkpoint).values())
    if not is_notebook(run) or not (files := list_notebook_model(run)):
        return None
    references = [storage.build_file_reference(file.blob, file.path).model_dump() for file in files]
    return {"step": 0, "files": references}, [file.blob for file in files]


def get_checkpoint_blobs(checkpoint: Checkpoint | Publication) -> dict[str, Blob]:
    """Return a checkpoint's downloadable files by name. Names in its manifest are untrusted node input."""
    blobs = {blob.sha256: blob for blob in checkpoint.blobs.all()}
    files = {PurePosixPath(str(file["path"])).name: str(file["sha256"]) for file in checkpoint.manifest["files"]}
    return {name: blobs[sha256] for name, sha256 in files.items() if is_downloadable(name) and sha256 in blobs}


def is_downloadable(name: str) -> bool:
    """Return whether a file of a checkpoint is offered: all but the optimizer state, which is larger."""
    return is_weights_file(name) or name in (STATE_FILE, MANIFEST)


def get_entry_file(manifest: dict[str, Any]) -> str:
    """Return the name of the file with a checkpoint's weights, or of the index of their shards."""
    names = {PurePosixPath(str(file["path"])).name for file in manifest["files"]}
    return WEIGHTS_INDEX if WEIGHTS_INDEX in names else WEIGHTS_FILE


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
