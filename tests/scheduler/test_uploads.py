"""Uploads and downloads of nodes: addressed by content, complete or rejected, only for their own job."""

from __future__ import annotations

import errno
import io
import json
import os
from typing import Any

import pytest
from django.core.files.storage import default_storage
from django.db import OperationalError, connection
from django.http import HttpResponse
from pytest_django import Settings

from scheduler import resumable_uploads, retention, storage, uploads
from scheduler.errors import TooLargeError
from scheduler.models import Checkpoint, JobFile, Lease
from tests.scheduler.node_api.test_transfers import CONTENT, get_path, is_complete, list_partial_files
from tests.support.pool import (
    ROOT,
    Agent,
    ClaimedJob,
    build_bearer_header,
    build_file_reference,
    create_job,
    create_node,
    find_blob,
    read_error_detail,
)
from trainer import protocol

pytestmark = pytest.mark.sql


def count_stored_files() -> int:
    folders = default_storage.listdir("blobs")[0] if default_storage.exists("blobs") else []
    return sum(len(default_storage.listdir(f"blobs/{folder}")[1]) for folder in folders)


def list_missing_hashes(claimed_job: ClaimedJob, *files: protocol.FileRef) -> tuple[str, ...]:
    response = claimed_job.call("/blobs", protocol.BlobQuery(files=files))
    assert response.status_code == 200, response.content
    return protocol.MissingBlobs.model_validate_json(response.content).sha256


def read_body(response: Any) -> bytes:
    assert response.status_code == 200
    return b"".join(response.streaming_content)


def test_upload_to_full_disk_answers_507(claimed_job: ClaimedJob, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*args: Any) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(resumable_uploads, "append_piece", fail)
    response = put_piece(claimed_job, 0, CONTENT)

    assert (response.status_code, response["Retry-After"]) == (507, "60")
    assert "disk is full" in read_error_detail(response)


def test_call_without_database_answers_503(claimed_job: ClaimedJob) -> None:
    def fail(execute: Any, sql: str, *args: Any) -> Any:
        if "scheduler_lease" in sql:
            raise OperationalError("server closed the connection unexpectedly")
        return execute(sql, *args)

    with connection.execute_wrapper(fail):
        response = claimed_job.send_heartbeat(1)

    assert (response.status_code, response["Retry-After"]) == (503, "60")


def test_parallel_uploads_share_the_limit_of_a_lease(claimed_job: ClaimedJob, settings: Settings) -> None:
    settings.LEASE_MAX_BYTES = 10
    content = [b"weights"]

    def read_while_another_file_is_sent(size: int) -> bytes:
        assert claimed_job.upload_blob(b"moments").status_code == 413
        return content.pop()

    lease = Lease.objects.get(pk=claimed_job.lease.lease)
    sha256 = build_file_reference(b"weights").sha256
    uploads.store_upload(lease, sha256, read_while_another_file_is_sent, resumable_uploads.ByteRange(0, 6, 7))
    assert lease.uploads.get().sha256 == sha256


@pytest.mark.parametrize("end", ["too long", "broken", "another hash"])
def test_rejected_upload_stores_nothing(claimed_job: ClaimedJob, end: str) -> None:
    sha256, file_count, parts = build_file_reference(b"weights").sha256, count_stored_files(), [b"half of it"]

    def read_and_break(size: int) -> bytes:
        if parts:
            return parts.pop()
        raise ConnectionResetError

    if end == "too long":
        with pytest.raises(TooLargeError):
            storage.store_stream(sha256, io.BytesIO(b"weights").read, limit=6)
    elif end == "broken":
        with pytest.raises(ConnectionResetError):
            storage.store_stream(sha256, read_and_break)
    else:
        response = claimed_job.upload_blob(b"something else", sha256)
        assert response.status_code == 422
        assert "Nothing was stored" in read_error_detail(response)
    assert find_blob(b"weights") is None
    assert count_stored_files() == file_count


def test_node_downloads_files_of_its_own_job_only(agent: Agent) -> None:
    secret = storage.store_bytes(b"another job's weights")
    named = {"model": {"path": "x", "sha256": secret.sha256, "size": secret.size}}
    create_job(entry=storage.store_bytes(b"an entry"), result=named)
    claimed_job = agent.claim_job()
    assert claimed_job.spec.entry is not None
    assert read_body(claimed_job.download_blob(claimed_job.spec.release.sha256)) == b"a release"
    assert read_body(claimed_job.download_blob(claimed_job.spec.entry.sha256)) == b"an entry"
    response = claimed_job.download_blob(secret.sha256)
    assert response.status_code == 403
    assert read_error_detail(response) == "This file does not belong to this lease's job."
    assert claimed_job.download_blob("0" * 64).status_code == 403


def test_known_hash_gives_no_access(claimed_job: ClaimedJob) -> None:
    secret = storage.store_bytes(b"another job's weights")
    file = build_file_reference(b"another job's weights")
    assert list_missing_hashes(claimed_job, file) == (secret.sha256,), "the node must upload the file itself"
    response = claimed_job.report_checkpoint(10, file)
    assert response.status_code == 422
    assert "was not uploaded" in read_error_detail(response)
    assert claimed_job.finish(files=(file,)).status_code == 422
    assert not JobFile.objects.exists()


def test_checkpoint_is_recorded_once_when_complete(claimed_job: ClaimedJob, calls: list[Any]) -> None:
    file = build_file_reference(b"weights")
    assert claimed_job.report_checkpoint(10, file).status_code == 422
    claimed_job.upload_blob(b"weights")
    assert claimed_job.report_checkpoint(10, file.model_copy(update={"size": 8})).status_code == 422
    assert claimed_job.report_checkpoint(10, file, build_file_reference(b"", "empty")).status_code == 422
    assert json.loads(claimed_job.upload_blob(b"").content) == {"received": 0}
    for _ in range(2):
        assert claimed_job.report_checkpoint(10, file, build_file_reference(b"", "empty")).status_code == 200
    assert [call for call in calls if call[0] == "checkpoint"] == [("checkpoint", 10)]
    response = claimed_job.upload_checkpoint(10, b"better weights")
    assert response.status_code == 422
    assert "The first one counts" in read_error_detail(response)
    assert Checkpoint.objects.get().manifest["files"][0]["sha256"] == file.sha256


@pytest.mark.parametrize("path", ["../weights", "/etc/passwd", "a//b", "a\\b", "./a", "", "a\nb", "a/../b"])
def test_checkpoint_with_unsafe_path_is_rejected(claimed_job: ClaimedJob, path: str) -> None:
    claimed_job.upload_blob(b"weights")
    response = claimed_job.report_checkpoint(10, build_file_reference(b"weights", path))
    assert response.status_code == 422
    assert "is not a path inside a folder" in read_error_detail(response)


def test_next_node_downloads_checkpoint(claimed_job: ClaimedJob) -> None:
    claimed_job.upload_checkpoint(10, b"weights")
    claimed_job.finish("released")
    next_job = Agent(create_node("next")[1]).claim_job()
    assert isinstance(next_job.spec.order, protocol.TrainOrder)
    assert next_job.spec.order.resume == protocol.Checkpoint(step=10, files=(build_file_reference(b"weights"),))
    assert read_body(next_job.download_blob(build_file_reference(b"weights").sha256)) == b"weights"
    assert list_missing_hashes(next_job, build_file_reference(b"weights")) == ()


def test_download_from_bucket_redirects(claimed_job: ClaimedJob, settings: Settings) -> None:
    settings.S3_BUCKET = "train"
    options = {"bucket_name": "train", "access_key": "key", "secret_key": "secret", "region_name": "eu-central-1"}
    bucket = {"BACKEND": "storages.backends.s3.S3Storage", "OPTIONS": options}
    settings.STORAGES = {**settings.STORAGES, "default": bucket}
    response = claimed_job.download_blob(claimed_job.spec.release.sha256)
    assert response.status_code == 302
    assert response["Location"].startswith("https://train.s3.amazonaws.com/blobs/")
    assert "Signature=" in response["Location"]


# --- single pieces ---------------------------------------------------------------------------------------------------


def put_piece(
    claimed_job: ClaimedJob, first: int, data: bytes, total: int = len(CONTENT), header: str = "", path: str = ""
) -> HttpResponse:
    return claimed_job.agent.client.put(
        ROOT + (path or get_path(claimed_job)),
        data,
        content_type="application/octet-stream",
        headers={
            **build_bearer_header(claimed_job.lease.token),
            "Content-Range": header or f"bytes {first}-{first + len(data) - 1}/{total}",
        },
    )


def get_upload_offset(claimed_job: ClaimedJob) -> int:
    headers = build_bearer_header(claimed_job.lease.token)
    response = claimed_job.agent.client.head(ROOT + get_path(claimed_job), headers=headers)
    assert response.status_code == 200
    return int(response["Upload-Offset"])


def test_pieces_continue_at_the_reported_offset_only(claimed_job: ClaimedJob) -> None:
    assert get_upload_offset(claimed_job) == 0
    assert put_piece(claimed_job, 0, CONTENT[:1000]).json() == {"received": 1000}
    assert get_upload_offset(claimed_job) == 1000
    response = put_piece(claimed_job, 1001, CONTENT[1001:])
    assert response.status_code == 416
    assert read_error_detail(response) == "The file has 1,000 bytes so far, and this piece starts at 1,001."
    assert put_piece(claimed_job, 1000, CONTENT[1000:]).json() == {"received": len(CONTENT)}
    assert get_upload_offset(claimed_job) == len(CONTENT)
    repeated = put_piece(claimed_job, 5, CONTENT[5:10])
    assert repeated.json() == {"received": len(CONTENT)}, "a repeated piece changes nothing"
    assert is_complete()
    header = {**build_bearer_header(claimed_job.lease.token), "Range": f"bytes={len(b'a release')}-"}
    response = claimed_job.agent.client.get(ROOT + get_path(claimed_job, b"a release"), headers=header)
    assert response.status_code == 416
    assert "Request the whole file." in read_error_detail(response)


def test_complete_partial_file_is_verified_after_restart(claimed_job: ClaimedJob) -> None:
    put_piece(claimed_job, 0, CONTENT[:-1])
    (path,) = list_partial_files()
    with path.open("ab") as file:
        file.write(CONTENT[-1:])
    assert get_upload_offset(claimed_job) == len(CONTENT) - 1
    assert put_piece(claimed_job, len(CONTENT) - 1, CONTENT[-1:]).json() == {"received": len(CONTENT)}
    assert is_complete()


def test_pieces_of_another_file_are_rejected_and_deleted(claimed_job: ClaimedJob) -> None:
    put_piece(claimed_job, 0, b"x" * 1000)
    response = put_piece(claimed_job, 1000, CONTENT[1000:])
    assert response.status_code == 422
    assert "Nothing was stored" in read_error_detail(response)
    assert list_partial_files() == []
    assert find_blob(CONTENT) is None


@pytest.mark.parametrize(
    "header", ["bytes 0-9/5", "bytes 0-3/100", "bytes 5-4/100", "bytes */100", "lines 0-4/100", "bytes 0-4/" + "9" * 40]
)
def test_invalid_content_range_is_rejected(claimed_job: ClaimedJob, header: str) -> None:
    assert put_piece(claimed_job, 0, b"hello", header=header).status_code == 422
    assert list_partial_files() == []


def test_too_large_upload_is_rejected_at_first_piece(claimed_job: ClaimedJob, settings: Settings) -> None:
    settings.BLOB_MAX_BYTES = len(CONTENT) - 1
    assert put_piece(claimed_job, 0, CONTENT[:10]).status_code == 413
    settings.BLOB_MAX_BYTES = settings.LEASE_MAX_BYTES = len(CONTENT)
    assert put_piece(claimed_job, 0, CONTENT[:1000]).status_code == 200
    response = put_piece(claimed_job, 0, b"x" * 10, path=get_path(claimed_job, b"x" * 2000))
    assert response.status_code == 413, "partial uploads count for the lease limit"


def test_partial_upload_is_deleted_after_lease_ends(claimed_job: ClaimedJob) -> None:
    put_piece(claimed_job, 0, CONTENT[:1000])
    retention.delete_expired()
    assert get_upload_offset(claimed_job) == 1000, "partial uploads of an active lease stay"
    claimed_job.finish("released")
    assert put_piece(claimed_job, 1000, CONTENT[1000:]).status_code == 409
    retention.delete_expired()
    assert list_partial_files() == []
