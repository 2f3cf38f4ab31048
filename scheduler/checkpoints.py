"""Which checkpoints of a running job keep their files on the server.

These do: the newest two and the newest of another node, to resume from; as evidence for a replay the first one and, for
each node, the ends of two neighboring stretches, drawn at random; and those that a row of any app refers to. The files
of the others are deleted, unless another row refers to them (the weights of a published release). The rows stay: they
record who trained what, with the hashes of the uploads. A superseded checkpoint does not count against its lease's
limit.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from functools import partial

from django.db import transaction
from django.db.models import OuterRef, Subquery
from django.utils import timezone
from django.utils.crypto import salted_hmac

from scheduler import storage
from scheduler.models import Blob, Checkpoint, Job, JobFile, Lease

NEWEST_KEPT = 2
"""Checkpoints to resume from that are kept: the newest one, and the one before should that turn out to be unusable."""


def delete_superseded(job: Job) -> None:
    """Delete the files of checkpoints that the job's newest ones have superseded. Requires a transaction."""
    kept = list_kept(job)
    nodes = [checkpoint.lease.node_id if checkpoint.lease else None for checkpoint in kept]
    # A node may upload any number of unusable ones.
    of_another_node = [checkpoint for checkpoint, node in zip(kept, nodes, strict=True) if node != nodes[-1]][-1:]
    newest = {*kept[-NEWEST_KEPT:], *of_another_node}
    superseded = [checkpoint for checkpoint in kept if checkpoint not in newest]
    if not superseded:
        return
    release_uploads(job, superseded, newest)
    evidence = find_evidence(kept)
    for checkpoint in superseded:
        if checkpoint.pk not in evidence:
            delete_files(checkpoint)


def list_kept(job: Job) -> list[Checkpoint]:
    """Return the job's checkpoints that have their files, by step, each with the id of its `previous` one or None.

    One of step 0 precedes none: a replay computes the initial weights itself.
    """
    before = Checkpoint.objects.uploaded().filter(job=OuterRef("job"), step__gt=0, step__lt=OuterRef("step"))
    found = job.checkpoints.resumable().select_related("lease__node")
    return list(found.annotate(previous=Subquery(before.order_by("-step").values("pk")[:1])).order_by("step"))


def release_uploads(job: Job, superseded: Collection[Checkpoint], newest: Collection[Checkpoint]) -> None:
    """Take the files of superseded checkpoints from what the job's leases have uploaded."""
    used = Blob.objects.filter(checkpoints__in=newest).values("pk")
    files = JobFile.objects.filter(job=job).values("blob")
    uploads = Lease.uploads.through.objects.filter(lease__job=job, blob__checkpoints__in=superseded)
    uploads.exclude(blob__in=used).exclude(blob__in=files).delete()


def find_evidence(kept: Sequence[Checkpoint]) -> set[int]:
    """Return the ids of the first checkpoint and of those at the ends of each node's drawn stretches.

    `kept`: the job's checkpoints that have their files, each with the id of its `previous` one. The stretches of a node
    with the lowest rank among all of its stretches are always among them: they were kept each time before.
    """
    known = {checkpoint.pk: checkpoint for checkpoint in kept}
    drawn: dict[int | None, list[Checkpoint]] = {}
    evidence = {end.pk for end in kept if end.step > 0 and vars(end)["previous"] is None}
    for end in kept:
        if (ends := find_stretches(end, known)) is None:
            continue
        node = end.lease.node_id if end.lease else None
        if node not in drawn or draw_rank(end) < draw_rank(drawn[node][-1]):
            drawn[node] = ends
    return evidence | {checkpoint.pk for ends in drawn.values() for checkpoint in ends}


def find_stretches(end: Checkpoint, known: Mapping[int, Checkpoint]) -> list[Checkpoint] | None:
    """Return the ends of the two stretches up to a checkpoint: two if they begin with the initial weights, one if that
    is the first stretch, else three. None if one of them is not in `known`.

    `known`: by id, each with the id of its `previous` one.
    """
    if end.step == 0:
        return None
    ends = [end]
    while len(ends) < 3 and (previous := vars(ends[0])["previous"]) is not None:
        if previous not in known:
            return None
        ends.insert(0, known[previous])
    return ends


def draw_rank(end: Checkpoint) -> bytes:
    """Return the random rank of the stretches that end with this checkpoint; the lowest one is drawn.

    It depends on the site's secret key: a node can neither compute it nor choose it. The minimum of random ranks is a
    uniform draw that needs no earlier stretch to be remembered.
    """
    return salted_hmac("scheduler.checkpoints.draw_rank", f"{end.job_id}:{end.step}", algorithm="sha256").digest()


def delete_files(checkpoint: Checkpoint) -> None:
    """Delete a checkpoint's files and keep its row, unless another row points at it."""
    # Locked, so that no row begins to point at it between the check and the end of the transaction.
    if not Checkpoint.objects.select_for_update().filter(pk=checkpoint.pk) or is_referenced(checkpoint):
        return
    files = list(checkpoint.blobs.values_list("pk", flat=True))
    checkpoint.blobs.clear()
    Checkpoint.objects.filter(pk=checkpoint.pk).update(files_deleted_at=timezone.now())
    # If this process ends before it gets there, `retention.delete_unused_blobs` deletes them a day later.
    transaction.on_commit(partial(delete_unused, files), robust=True)


def delete_unused(files: Iterable[str]) -> None:
    """Delete those of the files that no row refers to and that no active lease may still download."""
    for sha256 in files:
        if not Lease.objects.filter(state=Lease.State.ACTIVE, spec__contains=sha256).exists():
            storage.delete_unreferenced_blob(sha256)


def is_referenced(checkpoint: Checkpoint) -> bool:
    """Return whether any row of any app refers to the checkpoint, its own list of files aside."""
    return storage.is_referenced(checkpoint, except_by=Checkpoint.blobs.through)
