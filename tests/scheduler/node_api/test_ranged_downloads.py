"""A node fetches the rest of a file after a break, from the real site, over a real socket that is cut."""

from __future__ import annotations

import random
import socket
import threading
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from django.http import HttpResponse
from pytest_django import Settings

from scheduler import storage
from tests.support.pool import ROOT, Agent, Work, bearer, make_job, make_node, reference, sentence
from trainer.node import client as agent_client
from trainer.node.client import SiteClient
from trainer.node.downloads import download_file

CONTENT = random.Random(5).randbytes(3 << 20)


@pytest.fixture
def work(transactional_db: None, settings: Settings, tmp_path: Path) -> Work:
    settings.STORAGES = {
        **settings.STORAGES,
        "default": {
            "BACKEND": "django.core.files.storage.FileSystemStorage",
            "OPTIONS": {"location": str(tmp_path / "storage")},
        },
    }
    make_job(release=storage.store_bytes(CONTENT))
    return Agent(make_node()[1]).work()


class Cut:
    """A line to the site; the first of its connections end after so many bytes down."""

    def __init__(self, site: str, *after: int) -> None:
        self.came = 0
        """Bytes down, heads of answers included."""
        self._after = list(after)
        address = urlsplit(site)
        self._site = (str(address.hostname), int(address.port or 80))
        self._server = socket.create_server(("127.0.0.1", 0))
        self.address = f"http://127.0.0.1:{self._server.getsockname()[1]}"
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                near, _ = self._server.accept()
                far = socket.create_connection(self._site)
                threading.Thread(target=self._up, args=(near, far), daemon=True).start()
                left = self._after.pop(0) if self._after else 1 << 30
                threading.Thread(target=self._down, args=(far, near, left), daemon=True).start()

    def _up(self, near: socket.socket, far: socket.socket) -> None:
        with suppress(OSError):
            while data := near.recv(4096):
                far.sendall(data)

    def _down(self, far: socket.socket, near: socket.socket, left: int) -> None:
        with near, far, suppress(OSError):
            while left > 0 and (data := far.recv(min(65536, left))):
                near.sendall(data)
                left -= len(data)
                self.came += len(data)
            for end in (near, far):
                end.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        self._server.close()


@pytest.fixture
def line(site_url: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[Cut]:
    monkeypatch.setattr(agent_client, "BACKOFF_SECONDS", 0.01)
    made = Cut(site_url, 1_000_000, 700_000)
    yield made
    made.close()


def test_interrupted_download_resumes(work: Work, line: Cut, tmp_path: Path) -> None:
    client = SiteClient(line.address, work.lease.token)
    file = reference(CONTENT, "release.tar")
    path = f"/leases/{work.lease.lease}/blobs/{file.sha256}"
    try:
        download_file(client, path, file, tmp_path / "release.tar", lambda: False)
    finally:
        client.close()
    assert (tmp_path / "release.tar").read_bytes() == CONTENT
    assert line.came < len(CONTENT) + 5000, "beside the file only the heads of three answers"


def get(work: Work, range_: str) -> HttpResponse:
    return work.agent.client.get(
        f"{ROOT}/leases/{work.lease.lease}/blobs/{reference(CONTENT).sha256}",
        headers={**bearer(work.lease.token), "Range": range_},
    )


def test_range_download_has_content_range(work: Work) -> None:
    answer = get(work, "bytes=3000000-")
    rest = b"".join(answer.streaming_content)  # type: ignore[arg-type]
    assert (answer.status_code, rest) == (206, CONTENT[3000000:])
    assert answer["Content-Range"] == f"bytes 3000000-{len(CONTENT) - 1}/{len(CONTENT)}"
    assert answer["Content-Length"] == str(len(rest))


@pytest.mark.parametrize("range_", ["bytes=0-", "bytes=0-99", "bytes=-5", "lines=4-", "bytes=1-,7-", ""])
def test_download_with_other_range_returns_whole_file(work: Work, range_: str) -> None:
    answer = get(work, range_)
    assert answer.status_code == 200
    assert b"".join(answer.streaming_content) == CONTENT  # type: ignore[arg-type]


def test_download_beyond_end_gets_416(work: Work) -> None:
    answer = get(work, f"bytes={len(CONTENT)}-")
    assert answer.status_code == 416
    assert "Request the whole file." in sentence(answer)
