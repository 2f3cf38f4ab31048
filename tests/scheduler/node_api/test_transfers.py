"""Uploads in pieces and downloads of ranges, over connections that break."""

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
from django.core.files.base import File
from django.core.files.storage import default_storage

from scheduler import resumable_uploads, storage
from scheduler.models import Blob
from scheduler.node_api.downloads import BlobResponse
from tests.support.pool import (
    ROOT,
    Agent,
    ClaimedJob,
    build_file_reference,
    create_job,
    create_node,
    find_blob,
)
from tests.support.waits import WAIT_SECONDS
from trainer.node import client as agent_client
from trainer.node.client import SiteClient
from trainer.node.transfers import download_file, upload_file

pytestmark = pytest.mark.processes

PIECE = 64 << 10
CONTENT = random.Random(4).randbytes(1 << 20)
RELEASE = random.Random(5).randbytes(3 << 20)
HEADER_BYTES = 2000
"""Upper bound of one request's headers."""
NO_LIMIT = 1 << 30


class BreakingProxy:
    """A TCP proxy to the site; each connection breaks after a number of bytes up or down."""

    def __init__(self, site: str, draw_limits: Callable[[], tuple[int, int]]) -> None:
        self.sent = self.received = 0
        """Bytes to and from the site, headers included."""
        self.breaks = 0
        address = urlsplit(site)
        self._site = (str(address.hostname), int(address.port or 80))
        self._draw_limits = draw_limits
        self._sockets = [socket.create_server(("127.0.0.1", 0))]
        self.address = f"http://127.0.0.1:{self._sockets[0].getsockname()[1]}"
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                client, site = self._sockets[0].accept()[0], socket.create_connection(self._site)
                self._sockets += [client, site]
                up, down = self._draw_limits()
                for pipe in ((client, site, up, "sent"), (site, client, down, "received")):
                    threading.Thread(target=self._forward, args=pipe, daemon=True).start()

    def _forward(self, source: socket.socket, target: socket.socket, limit: int, counter: str) -> None:
        with suppress(OSError):
            while limit > 0 and (data := source.recv(min(4096, limit))):
                target.sendall(data)
                setattr(self, counter, getattr(self, counter) + len(data))
                limit -= len(data)
            self.breaks += limit <= 0
            for end in (source, target):
                end.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        for each in self._sockets:
            each.close()


@pytest.fixture
def start_proxy(site_url: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., BreakingProxy]]:
    monkeypatch.setattr(agent_client, "PIECE_BYTES", PIECE)
    monkeypatch.setattr(agent_client, "BACKOFF_SECONDS", 0.01)
    proxies: list[BreakingProxy] = []

    def start(draw_limits: Callable[[], tuple[int, int]]) -> BreakingProxy:
        proxies.append(BreakingProxy(site_url, draw_limits))
        return proxies[-1]

    yield start
    for proxy in proxies:
        proxy.close()


@pytest.fixture
def claimed_job(transactional_db: None) -> ClaimedJob:
    create_job(release=storage.store_bytes(RELEASE))
    return Agent(create_node()[1]).claim_job()


def get_path(claimed_job: ClaimedJob, content: bytes = CONTENT) -> str:
    return f"/leases/{claimed_job.lease.lease}/blobs/{build_file_reference(content).sha256}"


def upload_content(claimed_job: ClaimedJob, address: str) -> None:
    client = SiteClient(address, claimed_job.lease.token)
    reader = io.BufferedReader(io.BytesIO(CONTENT))  # type: ignore[arg-type]
    try:
        upload_file(client, get_path(claimed_job), len(CONTENT), reader, lambda: False)
    finally:
        client.close()


def is_complete() -> bool:
    blob = find_blob(CONTENT)
    return blob is not None and storage.read_blob(blob) == CONTENT


def list_partial_files() -> list[Path]:
    folders = [resumable_uploads.settings.UPLOADS / str(pk) for pk in resumable_uploads.list_leases_with_partials()]
    return [path for folder in folders for path in folder.iterdir()]


def test_interrupted_upload_repeats_at_most_one_piece(
    claimed_job: ClaimedJob, start_proxy: Callable[..., BreakingProxy]
) -> None:
    lengths = random.Random(7)
    proxy = start_proxy(lambda: (lengths.randrange(100_000, 250_000), NO_LIMIT))
    upload_content(claimed_job, proxy.address)
    assert is_complete()
    assert proxy.breaks >= 4
    most = len(CONTENT) + proxy.breaks * PIECE + 40 * HEADER_BYTES
    assert proxy.sent < most, "only broken pieces are sent twice"


def test_interrupted_download_resumes(
    claimed_job: ClaimedJob, start_proxy: Callable[..., BreakingProxy], tmp_path: Path
) -> None:
    limits = [1_000_000, 700_000]
    proxy = start_proxy(lambda: (NO_LIMIT, limits.pop(0) if limits else NO_LIMIT))
    client = SiteClient(proxy.address, claimed_job.lease.token)
    file = build_file_reference(RELEASE, "release.tar")
    try:
        download_file(client, get_path(claimed_job, RELEASE), file, tmp_path / "release.tar", lambda: False)
    finally:
        client.close()
    assert (tmp_path / "release.tar").read_bytes() == RELEASE
    assert proxy.breaks == 2
    assert proxy.received < len(RELEASE) + 5000, "beyond the file only the headers of three responses"


def test_concurrent_uploads_of_same_bytes_store_one_file(claimed_job: ClaimedJob, site_url: str) -> None:
    with ThreadPoolExecutor(2) as pool:
        for future in [pool.submit(upload_content, claimed_job, site_url) for _ in range(2)]:
            future.result(WAIT_SECONDS)
    assert is_complete()
    assert Blob.objects.filter(sha256=build_file_reference(CONTENT).sha256).count() == 1
    assert list_partial_files() == []


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
        path = f"{ROOT}{get_path(claimed_job, RELEASE)}"
        head = f"GET {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nAuthorization: Bearer {claimed_job.lease.token}\r\n\r\n"
        connection.sendall(head.encode())
        assert connection.recv(4096).startswith(b"HTTP/1.1 200")
    assert closed.wait(WAIT_SECONDS)
    opened[0].close()
    assert positions[0] < size
