"""Uploads of nodes: files, checkpoints and job files. Also which files a node may download."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from django.conf import settings
from django.db import transaction
from django.db.models import Q, Sum
from django.utils import timezone

from scheduler import resumable_uploads
from scheduler.checkpoints import delete_superseded
from scheduler.errors import ForbiddenError, InvalidMessageError, LeaseEndedError, NotFoundError, TooLargeError
from scheduler.failure_reports import refute_claims
from scheduler.job_kinds import get_job_kind
from scheduler.models import Blob, Checkpoint, Job, JobFile, Lease
from trainer import protocol

MAX_FILES = 256
"""Files per message."""
MAX_STEPS_PER_SECOND = 10_000
"""More than any model makes."""
MAX_CLOCK_SKEW_SECONDS = 60.0
"""A node may report to have worked this much longer than its lease has lasted."""
MAX_RECORDED_BYTES = 2**62
"""A node may declare a size that no column holds."""


def list_missing_blobs(lease: Lease, message: protocol.BlobQuery) -> protocol.MissingBlobs:
    """Return which files the node has to upload.

    A file that only another job has counts as missing: the knowledge of a hash gives no access to a file.
    """
    with record_rejected_size(lease, max((file.size for file in message.files), default=0)):
        check_files(lease.job, message.files)
    uploaded = find_uploaded_blobs(lease.job, message.files)
    return protocol.MissingBlobs(
        sha256=tuple(dict.fromkeys(file.sha256 for file in message.files if file.sha256 not in uploaded))
    )


def store_upload(lease: Lease, sha256: str, read: Callable[[int], bytes], span: resumable_uploads.ByteRange) -> int:
    """Store a file or a piece of it; return how many bytes have arrived. The last byte makes it be checked and stored.

    Raises TooLargeError, LeaseEndedError, InvalidMessageError for another hash, and RangeError if bytes before the
    piece are missing.
    """
    path = resumable_uploads.get_partial_path(lease.pk, sha256, span.total)
    with resumable_uploads.open_partial_file(path) as file:
        received = get_upload_offset(lease, sha256)
        if received < span.total:
            check_upload_limits(lease, path, span.total)
            received = resumable_uploads.append_piece(file, span, read)
        if received < span.total:
            return received
        if not lease.uploads.filter(pk=sha256).exists():  # else completed while this piece waited
            blob = resumable_uploads.finish_upload(sha256, path)
            with transaction.atomic():
                lock_active_lease(lease)
                lease.uploads.add(blob)
        path.unlink(missing_ok=True)
    return span.total


def get_upload_offset(lease: Lease, sha256: str) -> int:
    """Return how many bytes of a file have arrived under this lease."""
    blob = lease.uploads.filter(pk=sha256).first()
    return resumable_uploads.get_received_size(lease.pk, sha256) if blob is None else blob.size


def check_upload_limits(lease: Lease, path: Path, size: int) -> None:
    """Check a file of this size with the partial file `path`. Raises TooLargeError, LeaseEndedError.

    Other uploads that have begun count with their whole size; files of superseded checkpoints do not count.
    """
    if not Lease.objects.active(lease).exists():
        raise LeaseEndedError
    begun = resumable_uploads.sum_begun_uploads(path)  # first: what ends meanwhile counts twice, not never
    stored = lease.uploads.aggregate(total=Sum("size"))["total"] or 0
    lease_limit = lease.job.max_lease_bytes or settings.LEASE_MAX_BYTES
    limit = int(min(get_file_limit(lease.job), lease_limit - stored - begun))
    with record_rejected_size(lease, size):
        if size > limit:
            path.unlink(missing_ok=True)
            raise TooLargeError(f"The file has {size:,} bytes, and this lease may upload {max(limit, 0):,} more.")


def get_file_limit(job: Job) -> int:
    return int(job.max_file_bytes or settings.BLOB_MAX_BYTES)


@contextmanager
def record_rejected_size(lease: Lease, size: int) -> Iterator[None]:
    """Record on the lease the size of a file that a limit of the site rejected."""
    try:
        yield
    except TooLargeError:
        size = min(max(size, lease.rejected_bytes or 0), MAX_RECORDED_BYTES)
        Lease.objects.filter(pk=lease.pk).update(rejected_bytes=size)
        raise


@transaction.atomic
def record_checkpoint(lease: Lease, message: protocol.Checkpoint, files: Sequence[protocol.FileRef] = ()) -> None:
    """Record a checkpoint and its job files, and delete the files of checkpoints that it supersedes.

    A milestone is handed to the kind of the job. A repeat changes nothing. Raises InvalidMessageError for another
    checkpoint of the same step, and for one older than the newest: it would split a stretch that is kept for a replay.
    """
    lock_active_lease(lease)
    attach_files(lease, files)
    job = lease.job
    if message.milestone is not None:
        get_job_kind(job).handle_milestone(job, message, get_complete_blobs(job, message.files))
        return
    manifest = message.model_dump(mode="json", exclude_none=True)
    known = job.checkpoints.uploaded().filter(step=message.step).first()
    if known is not None:
        if known.manifest != manifest:
            raise InvalidMessageError(
                f"This job already has another checkpoint of step {message.step}. The first one counts."
            )
        return
    last = job.checkpoints.uploaded().last()
    if last is not None and message.step < last.step:
        raise InvalidMessageError(
            f"This job already has a checkpoint of step {last.step}. One of step {message.step} is too old."
        )
    check_step(lease, message.step, last.step if last else 0)
    blobs = get_complete_blobs(job, message.files)
    fields = {"manifest": manifest, "lease": lease, "created_at": timezone.now(), "seconds": None}
    checkpoint, _ = Checkpoint.objects.update_or_create(  # it may replace one that was dropped
        job=job,
        step=message.step,
        from_milestone=False,
        defaults={**fields, "dropped_at": None, "files_deleted_at": None},
    )
    checkpoint.blobs.set(blobs)
    Job.objects.filter(pk=job.pk).update(failures=0)  # the job has made progress
    get_job_kind(job).handle_checkpoint(job, checkpoint)
    refute_claims(lease, checkpoint.step)
    delete_superseded(job)


def check_step(lease: Lease, step: int, last_step: int) -> None:
    """Raise InvalidMessageError for a step that the job cannot have reached, by its plan or by the time since then."""
    lasted = max((timezone.now() - lease.started_at).total_seconds(), 0.0)  # it may be of a clock that was ahead
    seconds = lasted + MAX_CLOCK_SKEW_SECONDS
    reachable = last_step + int(MAX_STEPS_PER_SECOND * seconds)
    if (planned := get_job_kind(lease.job).get_last_step(lease.job)) is not None:
        reachable = min(reachable, planned)
    if step > reachable:
        raise InvalidMessageError(f"This job cannot be at step {step} yet: it has reached step {reachable} at most.")


def attach_files(lease: Lease, files: Sequence[protocol.FileRef]) -> None:
    """Attach small files to the job. Requires a transaction."""
    blobs = {blob.sha256: blob for blob in get_complete_blobs(lease.job, files)}
    for file in files:
        JobFile.objects.update_or_create(job=lease.job, path=file.path, defaults={"blob": blobs[file.sha256]})


def get_downloadable_blob(lease: Lease, sha256: str) -> Blob:
    """Return a file that this lease's spec names. Raises LeaseEndedError, ForbiddenError, NotFoundError."""
    if lease.state != Lease.State.ACTIVE:
        raise LeaseEndedError
    if sha256 not in {
        file.sha256 for file in iterate_file_references(protocol.JobSpec.model_validate_json(lease.spec))
    }:
        raise ForbiddenError("This file does not belong to this lease's job.")
    blob = Blob.objects.filter(sha256=sha256).first()
    if blob is None:
        raise NotFoundError("The site has lost this file. Report it to a maintainer.")
    return blob


def iterate_file_references(message: Any) -> Iterator[protocol.FileRef]:
    """Yield the file references in the typed parts of a message; an author writes the free-form parts."""
    if isinstance(message, protocol.FileRef):
        yield message
    elif isinstance(message, protocol.Message):
        for name in type(message).model_fields:
            yield from iterate_file_references(getattr(message, name))
    elif isinstance(message, tuple):
        for item in message:
            yield from iterate_file_references(item)


# --- checks ----------------------------------------------------------------------------------------------------------


def lock_active_lease(lease: Lease) -> None:
    """Lock the lease's row. Raises LeaseEndedError. Requires a transaction."""
    if not Lease.objects.active(lease).select_for_update().values_list("pk").first():
        raise LeaseEndedError


def find_uploaded_blobs(job: Job, files: Collection[protocol.FileRef]) -> dict[str, Blob]:
    """Return the files that were uploaded for this job before, under any of its leases."""
    if not files:
        return {}
    blobs = Blob.objects.filter(sha256__in={file.sha256 for file in files}).filter(
        Q(uploaded_under__job=job) | Q(checkpoints__job=job) | Q(pk__in=JobFile.objects.filter(job=job).values("blob"))
    )
    return {blob.sha256: blob for blob in blobs}


def get_complete_blobs(job: Job, files: Sequence[protocol.FileRef]) -> list[Blob]:
    """Return the blobs of all files. Raises InvalidMessageError if one is missing or has another size."""
    check_files(job, files)
    uploaded = find_uploaded_blobs(job, files)
    for file in files:
        if file.sha256 not in uploaded:
            raise InvalidMessageError(f"{file.path} was not uploaded. Upload it, then repeat this message.")
        if uploaded[file.sha256].size != file.size:
            raise InvalidMessageError(f"{file.path} has {uploaded[file.sha256].size:,} bytes, not {file.size:,}.")
    return list(uploaded.values())


def check_files(job: Job, files: Sequence[protocol.FileRef]) -> None:
    """Raise InvalidMessageError or TooLargeError for paths that are unsafe to unpack on another machine."""
    if len(files) > MAX_FILES:
        raise InvalidMessageError(f"{len(files)} files in one message; at most {MAX_FILES} are allowed.")
    paths = [file.path for file in files]
    if len(set(paths)) != len(paths):
        raise InvalidMessageError("Two files have the same path.")
    for path in paths:
        if not path.isprintable() or "\\" in path or any(part in ("", ".", "..") for part in path.split("/")):
            raise InvalidMessageError(f"{path!r} is not a path inside a folder.")
    for file in files:
        if file.size > get_file_limit(job):
            raise TooLargeError(f"{file.path} has {file.size:,} bytes; the limit is {get_file_limit(job):,}.")
