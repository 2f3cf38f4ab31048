"""The threads of a web process: files have their own, so slow clients do not delay pages."""

from __future__ import annotations

import hashlib
import socket
import time
from contextlib import ExitStack
from typing import Any

import httpx
import pytest
from django.conf import settings

from dailytrain import asgi
from dailytrain.asgi import match_file_path
from tests.support.pool import Agent, create_job, create_node
from tests.support.waits import WAIT_SECONDS, wait_until
from trainer import protocol

pytestmark = pytest.mark.processes

CONTENT = b"a slow upload"
HASH = hashlib.sha256(CONTENT).hexdigest()


@pytest.mark.parametrize(
    ("method", "path", "is_file"),
    [
        ("GET", f"/api/node/v1/leases/7/blobs/{HASH}", True),
        ("GET", "/runs/3/weights/final/model.safetensors", True),
        ("GET", "/runs/3/parts/1/figure.png", True),
        ("GET", "/campaigns/wikis/files/shard-0.parquet", True),
        ("GET", f"/graphs/{HASH}/graph.json", True),
        ("GET", "/download/dailytrain.whl", True),
        ("POST", "/api/v1/runs", False),
        ("POST", "/", False),
        ("GET", "/runs/3/", False),
        ("POST", "/api/node/v1/leases/7/metrics", False),
        ("GET", "/queue/live.json", False),
    ],
)
def test_file_and_page_get_threads_of_their_own(method: str, path: str, is_file: bool) -> None:
    assert bool(match_file_path({"type": "http", "method": method, "path": path})) is is_file


def test_slow_uploads_of_a_lease_leave_threads_for_other_files(site_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    create_job()
    lease = Agent(create_node()[1]).claim_job().lease
    with ExitStack() as stack:
        slow = [
            stack.enter_context(start_upload(site_url, lease, zeros="0" * number))
            for number in range(settings.WEB_FILE_THREADS + 1)
        ]
        assert httpx.get(f"{site_url}/graphs/{HASH}/graph.json", timeout=WAIT_SECONDS).status_code == 404
        accepted, refused = slow[: asgi.UPLOADS_PER_LEASE], slow[asgi.UPLOADS_PER_LEASE :]
        assert all(connection.recv(4096).startswith(b"HTTP/1.1 503") for connection in refused)
        for connection in accepted:
            connection.sendall(CONTENT)
        assert all(connection.recv(4096).startswith(b"HTTP/1.1 200") for connection in accepted)
        wait_until(lambda: not asgi.running_uploads)
        monkeypatch.setattr(asgi, "UPLOAD_SECONDS", 0.1)
        late = stack.enter_context(start_upload(site_url, lease, "0" * 64))
        assert b'"received":0' in late.makefile("rb").read().replace(b" ", b""), "the piece is sent again"


def test_page_is_answered_while_slow_clients_send_bodies(site_url: str) -> None:
    url = httpx.URL(site_url)
    with ExitStack() as stack:
        for path, kind, length in (
            ("/github/webhook", "application/json", 1000),
            ("/api/node/v1/volunteer", "application/json", 1000),
            ("/api/v1/runs", "application/json", 1000),
            ("/accounts/login/", "multipart/form-data; boundary=x", 5 * 2**20),
            (f"/graphs/{HASH}/graph.json", "multipart/form-data; boundary=x", 1000),
            (f"/graphs/{HASH}/graph.json", "multipart/form-data; boundary=x", 5 * 2**20),
        ):
            head = f"POST {path} HTTP/1.1\r\nHost: {url.host}\r\nContent-Type: {kind}\r\nContent-Length: {length}"
            for _ in range(settings.WEB_FILE_THREADS + 1):
                connection = socket.create_connection((url.host, url.port), timeout=WAIT_SECONDS)
                stack.enter_context(connection).sendall(f"{head}\r\n\r\n--x\r\n".encode())
        for path, status in (("/healthz", 200), (f"/graphs/{HASH}/graph.json", 404)):
            assert httpx.get(f"{site_url}{path}", timeout=WAIT_SECONDS).status_code == status


def test_body_in_chunks_is_read_as_one_with_a_length(site_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def post(content: Any) -> httpx.Response:
        return httpx.post(f"{site_url}/api/node/v1/volunteer", content=content, timeout=WAIT_SECONDS)

    whole = post(b'{"unknown": 1}')
    assert whole.status_code == 422
    assert post(iter([b'{"unknown"', b": 1}"])).json() == whole.json()
    monkeypatch.setattr(settings, "DATA_UPLOAD_MAX_MEMORY_SIZE", 10)
    assert post(iter([b"x" * 11])).status_code == 413, "too large for ever, not for now"


def test_body_that_does_not_arrive_in_time_is_refused(site_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(asgi, "BODY_SECONDS", 0.1)
    url = httpx.URL(site_url)
    with socket.create_connection((url.host, url.port), timeout=WAIT_SECONDS) as connection:
        connection.sendall(b"POST /github/webhook HTTP/1.1\r\nHost: x\r\nContent-Length: 9\r\n\r\nx")
        assert connection.recv(4096).startswith(b"HTTP/1.1 408")


def test_time_for_a_body_grows_with_its_length(site_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A slow node reports its metrics too."""
    monkeypatch.setattr(asgi, "BODY_SECONDS", 0.0)
    url = httpx.URL(site_url)
    with socket.create_connection((url.host, url.port), timeout=WAIT_SECONDS) as connection:
        connection.sendall(b"POST /api/node/v1/volunteer HTTP/1.1\r\nHost: x\r\nContent-Length: 4000000\r\n\r\n")
        for _ in range(4):
            time.sleep(0.1)
            connection.sendall(bytes(1_000_000))
        assert not connection.recv(4096).startswith(b"HTTP/1.1 408")


def test_bodies_have_a_limit_together_and_each_is_refused_early(site_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(asgi, "COLLECTED_BYTES", 100_000)
    url = httpx.URL(site_url)

    def post(length: int, body: bytes) -> socket.socket:
        connection = stack.enter_context(socket.create_connection((url.host, url.port), timeout=WAIT_SECONDS))
        connection.sendall(f"POST /github/webhook HTTP/1.1\r\nHost: x\r\nContent-Length: {length}\r\n\r\n".encode())
        connection.sendall(body)
        return connection

    with ExitStack() as stack:
        assert post(settings.DATA_UPLOAD_MAX_MEMORY_SIZE + 1, b"").recv(4096).startswith(b"HTTP/1.1 413")
        for _ in range(3):
            post(1_000_000, b"x" * 30_000)
        wait_until(lambda: asgi.collected_bytes == 90_000)
        assert post(1_000_000, b"x" * 30_000).recv(4096).startswith(b"HTTP/1.1 503")
        assert httpx.get(f"{site_url}/healthz", timeout=WAIT_SECONDS).status_code == 200
    wait_until(lambda: not asgi.collected_bytes)


def start_upload(site_url: str, lease: protocol.Lease, sha256: str = HASH, zeros: str = "") -> socket.socket:
    """Send the head of an upload without its content. `zeros`: before the lease's number."""
    url = httpx.URL(site_url)
    connection = socket.create_connection((url.host, url.port), timeout=WAIT_SECONDS)
    lines = [
        f"PUT /api/node/v1/leases/{zeros}{lease.lease}/blobs/{sha256} HTTP/1.1",
        f"Host: {url.host}",
        f"Authorization: Bearer {lease.token}",
        f"Content-Length: {len(CONTENT)}",
        "Connection: close",
    ]
    connection.sendall("\r\n".join([*lines, "", ""]).encode())
    return connection
