"""What is forgotten, and what never is."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from pathlib import Path

import pytest
from django.core.files.base import ContentFile
from django.core.files.storage import default_storage
from django.utils import timezone
from pytest_django import DjangoCaptureOnCommitCallbacks, Settings

from leaderboard.models import Entry, Run, Season, Track
from scheduler import node_tokens, retention, storage
from scheduler.models import Blob, Job, JoinToken, Lease, LogChunk
from tests.support.pool import Agent, Work, blob_of, make_job, reference

LATER = timedelta(days=365)
Forget = Callable[[], None]


@pytest.fixture(autouse=True)
def _own_folder(settings: Settings, tmp_path: Path) -> None:
    options = {"location": str(tmp_path)}
    default = {"BACKEND": "django.core.files.storage.FileSystemStorage", "OPTIONS": options}
    settings.STORAGES = {**settings.STORAGES, "default": default}


@pytest.fixture
def work(agent: Agent) -> Work:
    make_job()
    work = agent.work()
    for step in (1, 2, 3):
        assert work.checkpoint(step, f"weights {step}".encode()).status_code == 200
    return work


@pytest.fixture
def forget(django_capture_on_commit_callbacks: DjangoCaptureOnCommitCallbacks) -> Forget:
    def later() -> None:
        with django_capture_on_commit_callbacks(execute=True):
            retention.delete_expired(timezone.now() + LATER)

    return later


def steps(job: Job) -> list[int]:
    return list(job.checkpoints.values_list("step", flat=True))


def here(blob: Blob) -> bool:
    return Blob.objects.filter(pk=blob.pk).exists() and default_storage.exists(blob.name)


def test_retention_deletes_superseded_checkpoints_with_files(work: Work, forget: Forget) -> None:
    first, last = blob_of(b"weights 1"), blob_of(b"weights 3")
    assert first
    assert last
    work.finish()
    forget()
    assert steps(work.job) == [3]
    assert not here(first)
    assert here(last)
    assert not default_storage.exists(first.name)


def test_retention_keeps_unfinished_job(work: Work, forget: Forget) -> None:
    forget()
    assert steps(work.job) == [1, 2, 3]
    work.finish("released")
    forget()
    assert steps(work.job) == [1, 2, 3]
    assert all(here(blob) for blob in Blob.objects.all())


def test_retention_keeps_recently_finished_job(work: Work) -> None:
    work.finish()
    retention.delete_expired()
    assert steps(work.job) == [1, 2, 3]


def test_retention_keeps_job_files(work: Work, forget: Forget) -> None:
    work.put(b"{}")
    work.finish(files=(reference(b"{}", "run.json"),))
    forget()
    kept = blob_of(b"{}")
    assert kept
    assert here(kept)


def test_retention_deletes_unreferenced_upload(work: Work, forget: Forget) -> None:
    work.put(b"half a checkpoint")
    stray = blob_of(b"half a checkpoint")
    assert stray
    forget()
    assert here(stray), "the lease is active: its checkpoint may be on its way"
    work.finish()
    forget()
    assert not here(stray)


def test_retention_keeps_files_of_active_lease(agent: Agent, forget: Forget) -> None:
    old = storage.store_bytes(b"the release of yesterday")
    make_job(release=old)
    work = agent.work()
    Job.objects.update(release=storage.store_bytes(b"the release of today"))
    forget()
    assert here(old)
    answer = work.get(old.sha256)
    assert b"".join(answer.streaming_content) == b"the release of yesterday"


def test_retention_deletes_old_stray_file(db: None, forget: Forget) -> None:
    name = default_storage.save("blobs/ab/left-behind", ContentFile(b"half"))
    retention.delete_expired()
    assert default_storage.exists(name)
    forget()
    assert not default_storage.exists(name)


def test_retention_deletes_old_logs_and_join_tokens(work: Work, forget: Forget) -> None:
    work.log(0, "hello")
    node_tokens.create_join_token()
    forget()
    assert LogChunk.objects.exists(), "its lease is active"
    work.finish()
    forget()
    assert not LogChunk.objects.exists()
    assert not JoinToken.objects.exists()
    assert Lease.objects.exists()


def test_retention_keeps_scored_checkpoint(work: Work, forget: Forget) -> None:
    """Not even a superseded one goes: a row of any app that points at it is enough."""
    season = Season.objects.create(name="first", corpus="python-library", tokenizer="bpe:512")
    track = Track.objects.create(slug="cpu", name="CPU", season=season, budget="10s", expected_seconds=10)
    about = {"title": "An idea", "repository": "here", "sha": "0" * 40, "architecture": "gpt"}
    entry = Entry.objects.create(
        kind=Entry.Kind.ARCHITECTURE, track=track, bundle=storage.store_bytes(b"an entry"), **about
    )
    scored_from = work.job.checkpoints.get(step=2)
    run = Run.objects.create(entry=entry, track=track, season=season, seed=1, budget="10s", checkpoint=scored_from)
    work.finish()
    forget()
    assert steps(work.job) == [2, 3]
    run.refresh_from_db()
    assert run.checkpoint == scored_from
    assert all(here(blob) for blob in (scored_from.blobs.get(), entry.bundle))


def test_file_uploaded_during_deletion_is_stored(db: None) -> None:
    once = storage.store_bytes(b"weights")
    Blob.objects.all().delete()
    again = storage.store_bytes(b"weights")
    assert once.name != again.name
