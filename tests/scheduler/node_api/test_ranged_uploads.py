"""Resumable uploads of large files in pieces, over connections that break."""

from __future__ import annotations

import io
import random
import socket
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from django.http import HttpResponse
from pytest_django import Settings

from scheduler import resumable_uploads, retention, storage
from scheduler.models import Blob
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
from tests.support.waits import WAIT_SECONDS
from trainer.node import client as agent_client
from trainer.node.client import RequestRefusedError, SiteClient
from trainer.node.transfers import upload_file

pytestmark = pytest.mark.processes

PIECE = 64 << 10
CONTENT = random.Random(4).randbytes(1 << 20)
HEADER_BYTES = 2000
"""Upper bound of one request's headers."""


@pytest.fixture(autouse=True)
def _own_folders(settings: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    settings.STORAGES = {
        **settings.STORAGES,
        "default": {
            "BACKEND": "django.core.files.storage.FileSystemStorage",
            "OPTIONS": {"location": str(tmp_path / "storage")},
        },
    }
    settings.UPLOADS = tmp_path / "uploads"
    monkeypatch.setattr(agent_client, "PIECE_BYTES", PIECE)
    monkeypatch.setattr(agent_client, "BACKOFF_SECONDS", 0.01)


class BreakingProxy:
    """A TCP proxy to the site; each connection breaks after a number of bytes up."""

    def __init__(self, site: str, draw_byte_limit: Callable[[], int]) -> None:
        self.sent = 0
        """Bytes sent to the site."""
        self.break_count = 0
        self.drop_responses_beyond: int | None = None
        address = urlsplit(site)
        self._site = (str(address.hostname), int(address.port or 80))
        self._draw_byte_limit = draw_byte_limit
        self._server = socket.create_server(("127.0.0.1", 0))
        self.address = f"http://127.0.0.1:{self._server.getsockname()[1]}"
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                client_socket, _ = self._server.accept()
                threading.Thread(target=self._forward_up, args=(client_socket,), daemon=True).start()

    def _forward_up(self, client_socket: socket.socket) -> None:
        byte_limit = self._draw_byte_limit()
        with client_socket, socket.create_connection(self._site) as site_socket:
            threading.Thread(target=self._forward_down, args=(site_socket, client_socket), daemon=True).start()
            with suppress(OSError):
                while data := client_socket.recv(min(4096, byte_limit)):
                    site_socket.sendall(data)
                    self.sent += len(data)
                    byte_limit -= len(data)
                    if byte_limit <= 0:
                        self.break_count += 1
                        break
                for connection_end in (client_socket, site_socket):
                    connection_end.shutdown(socket.SHUT_RDWR)

    def _forward_down(self, site_socket: socket.socket, client_socket: socket.socket) -> None:
        with suppress(OSError):
            while data := site_socket.recv(4096):
                if self.drop_responses_beyond is not None and self.sent > self.drop_responses_beyond:
                    self.drop_responses_beyond = None
                    client_socket.shutdown(socket.SHUT_RDWR)
                    return
                client_socket.sendall(data)

    def close(self) -> None:
        self._server.close()


@pytest.fixture
def claimed_job(transactional_db: None) -> ClaimedJob:
    create_job()
    return Agent(create_node()[1]).claim_job()


@pytest.fixture
def steady_proxy(site_url: str) -> Iterator[BreakingProxy]:
    proxy = BreakingProxy(site_url, lambda: 1 << 30)
    yield proxy
    proxy.close()


def upload_content(claimed_job: ClaimedJob, address: str, content: bytes = CONTENT, sha256: str = "") -> None:
    path = f"/leases/{claimed_job.lease.lease}/blobs/{sha256 or build_file_reference(content).sha256}"
    client = SiteClient(address, claimed_job.lease.token)
    try:
        upload_file(client, path, len(content), io.BufferedReader(io.BytesIO(content)), lambda: False)  # type: ignore[arg-type]
    finally:
        client.close()


def is_complete() -> bool:
    blob = find_blob(CONTENT)
    return blob is not None and storage.read_blob(blob) == CONTENT


def list_partial_files() -> list[Path]:
    return [
        path
        for lease in resumable_uploads.list_leases_with_partials()
        for path in (resumable_uploads.settings.UPLOADS / str(lease)).iterdir()
    ]


def test_upload_in_pieces_counts_when_complete(claimed_job: ClaimedJob, steady_proxy: BreakingProxy) -> None:
    upload_content(claimed_job, steady_proxy.address)
    assert is_complete()
    assert list_partial_files() == []
    assert claimed_job.report_checkpoint(1, build_file_reference(CONTENT)).status_code == 200
    assert steady_proxy.sent < len(CONTENT) + 17 * HEADER_BYTES


def test_interrupted_upload_repeats_at_most_one_piece(claimed_job: ClaimedJob, site_url: str) -> None:
    lengths = random.Random(7)
    proxy = BreakingProxy(site_url, lambda: lengths.randrange(100_000, 250_000))
    upload_content(claimed_job, proxy.address)
    proxy.close()
    assert is_complete()
    assert proxy.break_count >= 4
    assert proxy.sent < len(CONTENT) + proxy.break_count * PIECE + 40 * HEADER_BYTES, (
        "only broken pieces are sent twice"
    )


def test_upload_after_lost_reply_sends_nothing_again(claimed_job: ClaimedJob, steady_proxy: BreakingProxy) -> None:
    steady_proxy.drop_responses_beyond = len(CONTENT)  # the response to the last piece
    upload_content(claimed_job, steady_proxy.address)
    assert is_complete()
    assert steady_proxy.drop_responses_beyond is None, "no response was dropped"
    assert steady_proxy.sent < len(CONTENT) + 20 * HEADER_BYTES


def test_small_file_is_uploaded_in_one_request(claimed_job: ClaimedJob, steady_proxy: BreakingProxy) -> None:
    upload_content(claimed_job, steady_proxy.address, b"small")
    assert find_blob(b"small") is not None


def test_concurrent_uploads_of_same_bytes_store_one_file(claimed_job: ClaimedJob, site_url: str) -> None:
    with ThreadPoolExecutor(2) as pool:
        for future in [pool.submit(upload_content, claimed_job, site_url) for _ in range(2)]:
            future.result(WAIT_SECONDS)
    assert is_complete()
    assert Blob.objects.filter(sha256=build_file_reference(CONTENT).sha256).count() == 1
    assert list_partial_files() == []


def test_upload_with_wrong_hash_is_rejected_and_deleted(claimed_job: ClaimedJob, steady_proxy: BreakingProxy) -> None:
    with pytest.raises(RequestRefusedError, match="Nothing was stored"):
        upload_content(claimed_job, steady_proxy.address, sha256="ab" * 32)
    assert list_partial_files() == []
    assert not Blob.objects.filter(sha256="ab" * 32).exists()


# --- single pieces ---------------------------------------------------------------------------------------------------


def put_piece(
    claimed_job: ClaimedJob, first: int, data: bytes, total: int = len(CONTENT), header: str = ""
) -> HttpResponse:
    return claimed_job.agent.client.put(
        f"{ROOT}/leases/{claimed_job.lease.lease}/blobs/{build_file_reference(CONTENT).sha256}",
        data,
        content_type="application/octet-stream",
        headers={
            **build_bearer_header(claimed_job.lease.token),
            "Content-Range": header or f"bytes {first}-{first + len(data) - 1}/{total}",
        },
    )


def get_upload_offset(claimed_job: ClaimedJob) -> int:
    response = claimed_job.agent.client.head(
        f"{ROOT}/leases/{claimed_job.lease.lease}/blobs/{build_file_reference(CONTENT).sha256}",
        headers=build_bearer_header(claimed_job.lease.token),
    )
    assert response.status_code == 200
    return int(response["Upload-Offset"])


def test_upload_offset_is_reported(claimed_job: ClaimedJob) -> None:
    assert get_upload_offset(claimed_job) == 0
    assert put_piece(claimed_job, 0, CONTENT[:1000]).json() == {"received": 1000}
    assert get_upload_offset(claimed_job) == 1000
    assert put_piece(claimed_job, 1000, CONTENT[1000:]).json() == {"received": len(CONTENT)}
    assert get_upload_offset(claimed_job) == len(CONTENT)
    assert put_piece(claimed_job, 5, CONTENT[5:10]).json() == {"received": len(CONTENT)}, (
        "a repeated piece changes nothing"
    )
    assert is_complete()


def test_overlapping_piece_appends_only_new_bytes(claimed_job: ClaimedJob) -> None:
    put_piece(claimed_job, 0, CONTENT[:1000])
    assert put_piece(claimed_job, 400, CONTENT[400:600]).json() == {"received": 1000}
    assert put_piece(claimed_job, 400, CONTENT[400:5000]).json() == {"received": 5000}
    put_piece(claimed_job, 5000, CONTENT[5000:])
    assert is_complete()


def test_piece_after_a_gap_is_rejected(claimed_job: ClaimedJob) -> None:
    put_piece(claimed_job, 0, CONTENT[:1000])
    response = put_piece(claimed_job, 1001, CONTENT[1001:])
    assert response.status_code == 416
    assert read_error_detail(response) == "The file has 1,000 bytes so far, and this piece starts at 1,001."


def test_complete_partial_file_is_verified_after_restart(claimed_job: ClaimedJob) -> None:
    put_piece(claimed_job, 0, CONTENT[:-1])
    (path,) = list_partial_files()
    with path.open("ab") as file:
        file.write(CONTENT[-1:])
    assert get_upload_offset(claimed_job) == len(CONTENT) - 1
    assert put_piece(claimed_job, len(CONTENT) - 1, CONTENT[-1:]).json() == {"received": len(CONTENT)}
    assert is_complete()


@pytest.mark.parametrize(
    "header", ["bytes 0-9/5", "bytes 0-3/100", "bytes 5-4/100", "bytes */100", "lines 0-4/100", "bytes 0-4/" + "9" * 40]
)
def test_invalid_content_range_is_rejected(claimed_job: ClaimedJob, header: str) -> None:
    assert put_piece(claimed_job, 0, b"hello", header=header).status_code == 422
    assert not resumable_uploads.list_leases_with_partials()


def test_too_large_upload_is_rejected_at_first_piece(claimed_job: ClaimedJob, settings: Settings) -> None:
    settings.BLOB_MAX_BYTES = len(CONTENT) - 1
    assert put_piece(claimed_job, 0, CONTENT[:10]).status_code == 413
    settings.BLOB_MAX_BYTES = settings.LEASE_MAX_BYTES = len(CONTENT)
    assert put_piece(claimed_job, 0, CONTENT[:1000]).status_code == 200
    second_file = build_file_reference(b"x" * 2000)
    response = claimed_job.agent.client.put(
        f"{ROOT}/leases/{claimed_job.lease.lease}/blobs/{second_file.sha256}",
        b"x" * 10,
        content_type="application/octet-stream",
        headers={**build_bearer_header(claimed_job.lease.token), "Content-Range": f"bytes 0-9/{len(CONTENT)}"},
    )
    assert response.status_code == 413, "partial uploads count for the lease limit"


def test_partial_upload_is_deleted_after_lease_ends(claimed_job: ClaimedJob) -> None:
    put_piece(claimed_job, 0, CONTENT[:1000])
    retention.delete_expired()
    assert get_upload_offset(claimed_job) == 1000, "partial uploads of an active lease stay"
    claimed_job.finish("released")
    assert put_piece(claimed_job, 1000, CONTENT[1000:]).status_code == 409
    retention.delete_expired()
    assert resumable_uploads.list_leases_with_partials() == []
