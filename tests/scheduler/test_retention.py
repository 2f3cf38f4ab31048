"""Retention: which checkpoints, files and rows are deleted, and which stay."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta

import pytest
from django.core.files.base import ContentFile
from django.core.files.storage import default_storage
from django.utils import timezone
from pytest_django import DjangoAssertNumQueries, DjangoCaptureOnCommitCallbacks

from scheduler import node_tokens, retention, storage
from scheduler.models import Blob, Checkpoint, Job, JoinToken, Lease, LogChunk, Node
from tests.support import scene
from tests.support.pool import Agent, ClaimedJob, create_job, find_blob

LATER = timedelta(days=365)
DeleteExpired = Callable[[], None]


@pytest.fixture
def claimed_job(claimed_job: ClaimedJob) -> ClaimedJob:
    for step in (1, 2, 3):
        assert claimed_job.upload_checkpoint(step, f"weights {step}".encode()).status_code == 200
    return claimed_job


@pytest.fixture
def delete_expired(django_capture_on_commit_callbacks: DjangoCaptureOnCommitCallbacks) -> DeleteExpired:
    def delete() -> None:
        with django_capture_on_commit_callbacks(execute=True):
            retention.delete_expired(timezone.now() + LATER)

    return delete


def list_steps(job: Job) -> list[int]:
    return list(job.checkpoints.values_list("step", flat=True))


def is_stored(blob: Blob) -> bool:
    return Blob.objects.filter(pk=blob.pk).exists() and default_storage.exists(blob.name)


def test_retention_deletes_what_nothing_refers_to(claimed_job: ClaimedJob, delete_expired: DeleteExpired) -> None:
    claimed_job.upload_blob(b"half a checkpoint")
    first, last, unreferenced = (find_blob(name) for name in (b"weights 1", b"weights 3", b"half a checkpoint"))
    assert first
    assert last
    assert unreferenced
    claimed_job.send_log(0, "hello")
    node_tokens.create_join_token()
    delete_expired()
    assert is_stored(unreferenced), "the lease is active: its checkpoint may be on its way"
    assert LogChunk.objects.exists()
    claimed_job.finish()
    delete_expired()
    assert list_steps(claimed_job.job) == [3]
    assert [is_stored(blob) for blob in (first, last, unreferenced)] == [False, True, False]
    assert not default_storage.exists(first.name)
    assert not LogChunk.objects.exists()
    assert not JoinToken.objects.exists()
    assert Lease.objects.exists()


def test_retention_keeps_the_last_checkpoint_before_a_later_milestone(
    claimed_job: ClaimedJob, delete_expired: DeleteExpired
) -> None:
    Node.objects.update(trusted=True)
    claimed_job.finish("failed", reason="It crashed.", cause="model")
    weights = Checkpoint.objects.create(
        job=claimed_job.job, step=9, manifest={"step": 9, "files": []}, from_milestone=True
    )
    retention.delete_expired(timezone.now() + timedelta(days=1))
    assert list_steps(claimed_job.job) == [1, 2, 3, 9], "a new run may start from it"
    delete_expired()
    assert not Checkpoint.objects.filter(pk=weights.pk).exists(), "nothing refers to it"
    assert list_steps(claimed_job.job) == [3]


def test_retention_keeps_files_of_active_lease(agent: Agent, delete_expired: DeleteExpired) -> None:
    old_release = storage.store_bytes(b"the release of yesterday")
    create_job(release=old_release)
    claimed_job = agent.claim_job()
    Job.objects.update(release=storage.store_bytes(b"the release of today"))
    delete_expired()
    assert is_stored(old_release)
    answer = claimed_job.download_blob(old_release.sha256)
    assert b"".join(answer.streaming_content) == b"the release of yesterday"


def test_stray_files_among_many_are_found_in_one_query_per_batch(
    db: None, monkeypatch: pytest.MonkeyPatch, django_assert_num_queries: DjangoAssertNumQueries
) -> None:
    monkeypatch.setattr(retention, "FILES_PER_QUERY", 4)
    blobs = [storage.store_bytes(f"file {number}".encode()) for number in range(7)]
    stray = default_storage.save("blobs/ab/left-behind", ContentFile(b"half"))
    later = timezone.now() + timedelta(hours=retention.UPLOAD_HOURS + 1)
    with django_assert_num_queries(2):
        assert retention.delete_stray_files(later) == 1
    assert not default_storage.exists(stray)
    assert all(default_storage.exists(blob.name) for blob in blobs)


def test_retention_keeps_scored_checkpoint(claimed_job: ClaimedJob, delete_expired: DeleteExpired) -> None:
    """A row of any app that refers to a superseded checkpoint keeps it."""
    entry = scene.create_entry(scene.create_track(), "An idea", bundle=storage.store_bytes(b"an entry"))
    scored_from = claimed_job.job.checkpoints.get(step=2)
    run = scene.create_run(entry, checkpoint=scored_from)
    claimed_job.finish()
    delete_expired()
    assert list_steps(claimed_job.job) == [2, 3]
    run.refresh_from_db()
    assert run.checkpoint == scored_from
    assert all(is_stored(blob) for blob in (scored_from.blobs.get(), entry.bundle))


def test_file_uploaded_during_deletion_is_stored(db: None) -> None:
    first = storage.store_bytes(b"weights")
    Blob.objects.all().delete()
    second = storage.store_bytes(b"weights")
    assert first.name != second.name
