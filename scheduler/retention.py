"""Retention: deletes old logs, superseded checkpoints and unreferenced files.

These stay: checkpoints and files that a row of any app refers to, the last checkpoint of every job, and all checkpoints
of unfinished jobs (`scheduler.checkpoints` decides which of those have files).
"""

from __future__ import annotations

import logging
import shutil
from collections.abc import Iterator
from datetime import datetime, timedelta
from itertools import islice
from pathlib import PurePosixPath

from django.conf import settings
from django.core.files.storage import default_storage
from django.db import transaction
from django.db.models import Exists, OuterRef, Q
from django.utils import timezone

from scheduler import resumable_uploads, storage, transitions, uploads
from scheduler.checkpoints import is_referenced
from scheduler.models import Blob, Checkpoint, JoinToken, Lease, LogChunk
from trainer import protocol

logger = logging.getLogger(__name__)

LOG_DAYS = 30
CHECKPOINT_DAYS = 2
"""Days that superseded checkpoints stay after the end of their job, for inspection."""
UPLOAD_HOURS = 24
"""Hours that an unreferenced file stays, since its checkpoint may not be recorded yet."""
JOIN_TOKEN_DAYS = 30
FILES_PER_QUERY = 500


def delete_expired(now: datetime | None = None) -> None:
    """Delete everything that is due. Safe to run at any time."""
    now = now or timezone.now()
    LogChunk.objects.filter(lease__ended_at__lt=now - timedelta(days=LOG_DAYS)).delete()
    JoinToken.objects.filter(expires_at__lt=now - timedelta(days=JOIN_TOKEN_DAYS)).delete()
    checkpoints = delete_superseded_checkpoints(now)
    uploads_end = now - timedelta(hours=UPLOAD_HOURS)  # checkpoints and job files keep their own
    Lease.uploads.through.objects.filter(lease__ended_at__lt=uploads_end).delete()
    files = delete_unused_blobs(now) + delete_stray_files(now)
    delete_stale_partial_uploads()
    if checkpoints or files:
        logger.info("Deleted %s superseded checkpoints and %s files", checkpoints, files)


def delete_superseded_checkpoints(now: datetime) -> int:
    """Delete the checkpoints before a job's last one, and the unreferenced ones that were made of milestones."""
    before = now - timedelta(days=CHECKPOINT_DAYS)
    later = Checkpoint.objects.uploaded().filter(job=OuterRef("job"), step__gt=OuterRef("step"))
    ended = Checkpoint.objects.filter(job__state__in=transitions.FINAL_STATES, job__finished_at__lt=before)
    superseded = ended.filter(Q(Exists(later), from_milestone=False) | Q(from_milestone=True, created_at__lt=before))
    return sum(map(delete_checkpoint, superseded))


@transaction.atomic
def delete_checkpoint(checkpoint: Checkpoint) -> bool:
    """Delete a checkpoint unless another row refers to it; return whether it was deleted."""
    # Locked, so that no row begins to refer to it between the check and the deletion.
    if not Checkpoint.objects.select_for_update().filter(pk=checkpoint.pk) or is_referenced(checkpoint):
        return False
    checkpoint.delete()
    return True


def delete_unused_blobs(now: datetime) -> int:
    """Delete files that no row refers to and no active lease names; return how many."""
    named = list_leased_files()
    old = Blob.objects.filter(created_at__lt=now - timedelta(hours=UPLOAD_HOURS))
    unused = old.filter(Q(checkpoints=None) & Q(uploaded_under=None))
    names = [sha256 for sha256 in unused.values_list("sha256", flat=True) if sha256 not in named]
    return sum(map(storage.delete_unreferenced_blob, names))


def list_leased_files() -> set[str]:
    """Return the files that active leases may still download."""
    specs = Lease.objects.filter(state=Lease.State.ACTIVE).exclude(spec="").values_list("spec", flat=True)
    return {
        file.sha256
        for spec in specs
        for file in uploads.iterate_file_references(protocol.JobSpec.model_validate_json(spec))
    }


# --- files without a row ---------------------------------------------------------------------------------------------


def delete_stray_files(now: datetime) -> int:
    """Delete files without a row that a crash left in the storage; return how many."""
    before = now - timedelta(hours=UPLOAD_HOURS)
    files, strays = list_stored_files(), []
    while batch := list(islice(files, FILES_PER_QUERY)):
        known = set(Blob.objects.filter(name__in=batch).values_list("name", flat=True))
        strays += [name for name in batch if name not in known and is_older(name, before)]
    for name in strays:
        default_storage.delete(name)
    return len(strays)


def list_stored_files() -> Iterator[str]:
    try:
        folders, _ = default_storage.listdir("blobs")
    except FileNotFoundError:
        return
    for folder in folders:
        for file in default_storage.listdir(f"blobs/{folder}")[1]:
            yield str(PurePosixPath("blobs", folder, file))


def delete_stale_partial_uploads() -> None:
    active = set(Lease.objects.filter(state=Lease.State.ACTIVE).values_list("pk", flat=True))
    for lease in set(resumable_uploads.list_leases_with_partials()) - active:
        shutil.rmtree(settings.UPLOADS / str(lease), ignore_errors=True)


def is_older(name: str, than: datetime) -> bool:
    try:
        return default_storage.get_modified_time(name) < than
    except FileNotFoundError:  # gone meanwhile
        return False
