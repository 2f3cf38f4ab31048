"""Files of nodes: by content, whole or not at all, and nobody else's."""

from __future__ import annotations

import base64
import io
import json
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
from django.core.files.storage import default_storage
from pytest_django import Settings

from scheduler import signing, storage
from scheduler.errors import TooLargeError
from scheduler.models import Checkpoint, Job, JobFile
from tests.support.pool import Agent, Work, blob_of, make_job, make_node, reference, sentence
from trainer import protocol


@pytest.fixture
def work(agent: Agent) -> Work:
    make_job(entry=storage.store_bytes(b"an entry"))
    return agent.work()


@pytest.fixture(autouse=True)
def _own_folder(settings: Settings, tmp_path: Path) -> None:
    settings.STORAGES = {
        **settings.STORAGES,
        "default": {"BACKEND": "django.core.files.storage.FileSystemStorage", "OPTIONS": {"location": str(tmp_path)}},
    }


def files_in_storage() -> int:
    folders = default_storage.listdir("blobs")[0] if default_storage.exists("blobs") else []
    return sum(len(default_storage.listdir(f"blobs/{folder}")[1]) for folder in folders)


def wanted(work: Work, *files: protocol.FileRef) -> tuple[str, ...]:
    answer = work.call("/blobs", protocol.BlobQuery(files=files))
    assert answer.status_code == 200, answer.content
    return protocol.MissingBlobs.model_validate_json(answer.content).sha256


def body(answer: Any) -> bytes:
    assert answer.status_code == 200
    return b"".join(answer.streaming_content)


def test_blob_is_missing_until_uploaded(work: Work) -> None:
    file = reference(b"weights")
    assert wanted(work, file) == (file.sha256,)
    assert json.loads(work.put(b"weights").content) == {"received": 7}
    assert wanted(work, file) == ()
    assert storage.read_blob(blob_of(b"weights")) == b"weights"  # type: ignore[arg-type]


def test_repeated_upload_is_stored_once(work: Work) -> None:
    before = files_in_storage()
    assert [work.put(b"weights").status_code for _ in range(3)] == [200, 200, 200]
    assert files_in_storage() == before + 1


def test_upload_with_other_hash_is_rejected(work: Work) -> None:
    before = files_in_storage()
    answer = work.put(b"something else", reference(b"weights").sha256)
    assert answer.status_code == 422
    assert "Nothing was stored" in sentence(answer)
    assert blob_of(b"weights") is None
    assert files_in_storage() == before


def test_too_large_upload_is_rejected(work: Work, settings: Settings) -> None:
    before = files_in_storage()
    settings.BLOB_MAX_BYTES = 6
    answer = work.put(b"weights")
    assert answer.status_code == 413
    assert "7 bytes" in sentence(answer)
    assert files_in_storage() == before


def test_upload_longer_than_announced_is_truncated(db: None) -> None:
    with pytest.raises(TooLargeError):
        storage.store_stream(reference(b"weights").sha256, io.BytesIO(b"weights").read, limit=6)
    assert files_in_storage() == 0


def test_uploads_per_lease_are_limited(work: Work, settings: Settings) -> None:
    settings.LEASE_MAX_BYTES = 10
    assert work.put(b"weights").status_code == 200
    assert work.put(b"optimizer").status_code == 413


def test_interrupted_upload_stores_nothing(db: None) -> None:
    parts = [b"half of it"]

    def broken(size: int) -> bytes:
        if parts:
            return parts.pop()
        raise ConnectionResetError

    with pytest.raises(ConnectionResetError):
        storage.store_stream(reference(b"weights").sha256, broken)
    assert blob_of(b"weights") is None
    assert files_in_storage() == 0


def test_node_downloads_release_and_entry(work: Work) -> None:
    assert work.spec.entry is not None
    assert body(work.get(work.spec.release.sha256)) == b"a release"
    assert body(work.get(work.spec.entry.sha256)) == b"an entry"


def test_download_of_other_jobs_file_is_forbidden(work: Work) -> None:
    secret = storage.store_bytes(b"another job's weights")
    answer = work.get(secret.sha256)
    assert answer.status_code == 403
    assert sentence(answer) == "This file does not belong to this lease's job."
    assert work.get("0" * 64).status_code == 403


def test_hash_in_config_gives_no_access(agent: Agent) -> None:
    secret = storage.store_bytes(b"another job's weights")
    make_job(result={"model": {"path": "x", "sha256": secret.sha256, "size": secret.size}})
    assert agent.work().get(secret.sha256).status_code == 403


def test_known_hash_gives_no_access(work: Work) -> None:
    secret = storage.store_bytes(b"another job's weights")
    file = reference(b"another job's weights")
    assert wanted(work, file) == (secret.sha256,), "the node has to show that it has the file"
    answer = work.uploaded(10, file)
    assert answer.status_code == 422
    assert "was not uploaded" in sentence(answer)
    assert work.finish(files=(file,)).status_code == 422
    assert not JobFile.objects.exists()


def test_checkpoint_is_recorded_when_complete(work: Work, calls: list[Any]) -> None:
    assert work.uploaded(10, reference(b"weights")).status_code == 422
    assert work.checkpoint(10, b"weights").status_code == 200
    assert work.uploaded(10, reference(b"weights")).status_code == 200
    assert [call for call in calls if call[0] == "checkpoint"] == [("checkpoint", 10)]
    assert Checkpoint.objects.get().manifest["files"][0]["sha256"] == reference(b"weights").sha256


def test_recorded_checkpoint_is_not_replaced(work: Work) -> None:
    work.checkpoint(10, b"weights")
    answer = work.checkpoint(10, b"better weights")
    assert answer.status_code == 422
    assert "The first one counts" in sentence(answer)


def test_checkpoint_with_wrong_size_is_rejected(work: Work) -> None:
    work.put(b"weights")
    lie = reference(b"weights").model_copy(update={"size": 8})
    assert work.uploaded(10, lie).status_code == 422


@pytest.mark.parametrize("path", ["../weights", "/etc/passwd", "a//b", "a\\b", "./a", "", "a\nb", "a/../b"])
def test_checkpoint_with_unsafe_path_is_rejected(work: Work, path: str) -> None:
    work.put(b"weights")
    answer = work.uploaded(10, reference(b"weights", path))
    assert answer.status_code == 422
    assert "is not a path inside a folder" in sentence(answer)


def test_next_node_downloads_checkpoint(work: Work) -> None:
    work.checkpoint(10, b"weights")
    work.finish("released")
    onward = Agent(make_node("next")[1]).work()
    assert isinstance(onward.spec.order, protocol.TrainOrder)
    assert onward.spec.order.resume == protocol.Checkpoint(step=10, files=(reference(b"weights"),))
    assert body(onward.get(reference(b"weights").sha256)) == b"weights"
    assert wanted(onward, reference(b"weights")) == ()


def test_job_files_are_attached(work: Work) -> None:
    work.put(b"{}")
    assert work.finish(files=(reference(b"{}", "run.json"),)).status_code == 200
    file = JobFile.objects.get(job=Job.objects.get())
    assert (file.path, storage.read_blob(file.blob)) == ("run.json", b"{}")


def test_download_from_bucket_redirects(work: Work, settings: Settings) -> None:
    settings.S3_BUCKET = "train"
    options = {"bucket_name": "train", "access_key": "key", "secret_key": "secret", "region_name": "eu-central-1"}
    bucket = {"BACKEND": "storages.backends.s3.S3Storage", "OPTIONS": options}
    settings.STORAGES = {**settings.STORAGES, "default": bucket}
    answer = work.get(work.spec.release.sha256)
    assert answer.status_code == 302
    assert answer["Location"].startswith("https://train.s3.amazonaws.com/blobs/")
    assert "Signature=" in answer["Location"]


def test_public_key_verifies_spec(work: Work) -> None:
    key = Ed25519PublicKey.from_public_bytes(base64.b64decode(signing.get_public_key()))
    key.verify(base64.b64decode(work.lease.signature), work.lease.spec.encode())
