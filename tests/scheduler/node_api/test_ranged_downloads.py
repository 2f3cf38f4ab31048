"""Range downloads of a node from a live site, over connections that break."""

from __future__ import annotations

import random
import socket
import threading
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from django.core.files.base import File
from django.core.files.storage import default_storage
from django.http import HttpResponse
from pytest_django import Settings

from scheduler import storage
from scheduler.models import Blob
from scheduler.node_api.downloads import BlobResponse
from tests.support.pool import (
    ROOT,
    Agent,
    ClaimedJob,
    build_bearer_header,
    build_file_reference,
    create_job,
    create_node,
    read_error_detail,
)
from tests.support.waits import WAIT_SECONDS
from trainer.node import client as agent_client
from trainer.node.client import SiteClient
from trainer.node.transfers import download_file

pytestmark = pytest.mark.processes

CONTENT = random.Random(5).randbytes(3 << 20)


@pytest.fixture
def claimed_job(transactional_db: None, settings: Settings, tmp_path: Path) -> ClaimedJob:
    settings.STORAGES = {
        **settings.STORAGES,
        "default": {
            "BACKEND": "django.core.files.storage.FileSystemStorage",
            "OPTIONS": {"location": str(tmp_path / "storage")},
        },
    }
    create_job(release=storage.store_bytes(CONTENT))
    return Agent(create_node()[1]).claim_job()


class BreakingProxy:
    """A TCP proxy to the site; its first connections break after the given numbers of bytes down."""

    def __init__(self, site: str, *after: int) -> None:
        self.received = 0
        """Bytes received from the site, response headers included."""
        self._byte_limits = list(after)
        address = urlsplit(site)
        self._site = (str(address.hostname), int(address.port or 80))
        self._server = socket.create_server(("127.0.0.1", 0))
        self.address = f"http://127.0.0.1:{self._server.getsockname()[1]}"
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                client_socket, _ = self._server.accept()
                site_socket = socket.create_connection(self._site)
                threading.Thread(target=self._forward_up, args=(client_socket, site_socket), daemon=True).start()
                byte_limit = self._byte_limits.pop(0) if self._byte_limits else 1 << 30
                threading.Thread(
                    target=self._forward_down, args=(site_socket, client_socket, byte_limit), daemon=True
                ).start()

    def _forward_up(self, client_socket: socket.socket, site_socket: socket.socket) -> None:
        with suppress(OSError):
            while data := client_socket.recv(4096):
                site_socket.sendall(data)

    def _forward_down(self, site_socket: socket.socket, client_socket: socket.socket, byte_limit: int) -> None:
        with client_socket, site_socket, suppress(OSError):
            while byte_limit > 0 and (data := site_socket.recv(min(65536, byte_limit))):
                client_socket.sendall(data)
                byte_limit -= len(data)
                self.received += len(data)
            for connection_end in (client_socket, site_socket):
                connection_end.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        self._server.close()


@pytest.fixture
def breaking_proxy(site_url: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[BreakingProxy]:
    monkeypatch.setattr(agent_client, "BACKOFF_SECONDS", 0.01)
    proxy = BreakingProxy(site_url, 1_000_000, 700_000)
    yield proxy
    proxy.close()


def test_interrupted_download_resumes(claimed_job: ClaimedJob, breaking_proxy: BreakingProxy, tmp_path: Path) -> None:
    client = SiteClient(breaking_proxy.address, claimed_job.lease.token)
    file = build_file_reference(CONTENT, "release.tar")
    path = f"/leases/{claimed_job.lease.lease}/blobs/{file.sha256}"
    try:
        download_file(client, path, file, tmp_path / "release.tar", lambda: False)
    finally:
        client.close()
    assert (tmp_path / "release.tar").read_bytes() == CONTENT
    assert breaking_proxy.received < len(CONTENT) + 5000, "beyond the file only the headers of three responses"


def get_range(claimed_job: ClaimedJob, range_: str) -> HttpResponse:
    return claimed_job.agent.client.get(
        f"{ROOT}/leases/{claimed_job.lease.lease}/blobs/{build_file_reference(CONTENT).sha256}",
        headers={**build_bearer_header(claimed_job.lease.token), "Range": range_},
    )


def test_range_download_has_content_range(claimed_job: ClaimedJob) -> None:
    response = get_range(claimed_job, "bytes=3000000-")
    content = b"".join(response.streaming_content)  # type: ignore[arg-type]
    assert (response.status_code, content) == (206, CONTENT[3000000:])
    assert response["Content-Range"] == f"bytes 3000000-{len(CONTENT) - 1}/{len(CONTENT)}"
    assert response["Content-Length"] == str(len(content))


@pytest.mark.parametrize("range_", ["bytes=0-", "bytes=0-99", "bytes=-5", "lines=4-", "bytes=1-,7-", ""])
def test_download_with_other_range_returns_whole_file(claimed_job: ClaimedJob, range_: str) -> None:
    response = get_range(claimed_job, range_)
    assert response.status_code == 200
    assert b"".join(response.streaming_content) == CONTENT  # type: ignore[arg-type]


def test_download_beyond_end_gets_416(claimed_job: ClaimedJob) -> None:
    response = get_range(claimed_job, f"bytes={len(CONTENT)}-")
    assert response.status_code == 416
    assert "Request the whole file." in read_error_detail(response)


def test_download_whose_client_hangs_up_is_read_no_further(
    site_url: str, claimed_job: ClaimedJob, monkeypatch: pytest.MonkeyPatch
) -> None:
    size = 64 << 20  # more than the buffers of sockets and of the site hold together
    blob = Blob.objects.get(sha256=claimed_job.spec.release.sha256)
    with Path(default_storage.path(blob.name)).open("ab") as file:
        file.truncate(size)
    Blob.objects.filter(pk=blob.pk).update(size=size)
    opened: list[File[bytes]] = []
    monkeypatch.setattr(storage, "open_blob", lambda blob: opened.append(default_storage.open(blob.name)) or opened[-1])
    closed = threading.Event()
    monkeypatch.setattr(BlobResponse, "close", lambda response: (positions.append(opened[0].tell()), closed.set()))
    positions: list[int] = []
    address = urlsplit(site_url)
    with socket.create_connection((str(address.hostname), int(address.port or 80))) as connection:
        path = f"{ROOT}/leases/{claimed_job.lease.lease}/blobs/{blob.sha256}"
        head = f"GET {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nAuthorization: Bearer {claimed_job.lease.token}\r\n\r\n"
        connection.sendall(head.encode())
        assert connection.recv(4096).startswith(b"HTTP/1.1 200")
    assert closed.wait(WAIT_SECONDS)
    opened[0].close()
    assert positions[0] < size
