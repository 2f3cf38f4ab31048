"""Large files come in pieces: what breaks off goes on where it was, over a real socket, and nothing half counts."""

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
from tests.support.pool import ROOT, Agent, Work, bearer, blob_of, make_job, make_node, reference, sentence
from trainer.node import client as agent_client
from trainer.node.client import RequestRefusedError, SiteClient
from trainer.node.uploads import upload_file

PIECE = 64 << 10
CONTENT = random.Random(4).randbytes(1 << 20)
SLOP = 2000
"""Bytes of a request's head, at most."""


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


class Line:
    """A line to the site that ends again and again: each connection carries so many bytes up, then it is cut."""

    def __init__(self, site: str, carries: Callable[[], int]) -> None:
        self.sent = 0
        """Bytes that went up."""
        self.cuts = 0
        self.drop_answers_beyond: int | None = None
        address = urlsplit(site)
        self._site = (str(address.hostname), int(address.port or 80))
        self._carries = carries
        self._server = socket.create_server(("127.0.0.1", 0))
        self.address = f"http://127.0.0.1:{self._server.getsockname()[1]}"
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                near, _ = self._server.accept()
                threading.Thread(target=self._carry, args=(near,), daemon=True).start()

    def _carry(self, near: socket.socket) -> None:
        left = self._carries()
        with near, socket.create_connection(self._site) as far:
            threading.Thread(target=self._answer, args=(far, near), daemon=True).start()
            with suppress(OSError):
                while data := near.recv(min(4096, left)):
                    far.sendall(data)
                    self.sent += len(data)
                    left -= len(data)
                    if left <= 0:
                        self.cuts += 1
                        break
                for end in (near, far):
                    end.shutdown(socket.SHUT_RDWR)

    def _answer(self, far: socket.socket, near: socket.socket) -> None:
        with suppress(OSError):
            while data := far.recv(4096):
                if self.drop_answers_beyond is not None and self.sent > self.drop_answers_beyond:
                    self.drop_answers_beyond = None
                    near.shutdown(socket.SHUT_RDWR)
                    return
                near.sendall(data)

    def close(self) -> None:
        self._server.close()


@pytest.fixture
def work(transactional_db: None) -> Work:
    make_job()
    return Agent(make_node()[1]).work()


@pytest.fixture
def steady(site_url: str) -> Iterator[Line]:
    made = Line(site_url, lambda: 1 << 30)
    yield made
    made.close()


def send(work: Work, address: str, content: bytes = CONTENT, sha256: str = "") -> None:
    path = f"/leases/{work.lease.lease}/blobs/{sha256 or reference(content).sha256}"
    client = SiteClient(address, work.lease.token)
    try:
        upload_file(client, path, len(content), io.BufferedReader(io.BytesIO(content)), lambda: False)  # type: ignore[arg-type]
    finally:
        client.close()


def whole() -> bool:
    blob = blob_of(CONTENT)
    return blob is not None and storage.read_blob(blob) == CONTENT


def under_way() -> list[Path]:
    return [
        path
        for lease in resumable_uploads.list_leases_with_partials()
        for path in (resumable_uploads.settings.UPLOADS / str(lease)).iterdir()
    ]


def test_upload_in_pieces_counts_when_complete(work: Work, steady: Line) -> None:
    send(work, steady.address)
    assert whole()
    assert under_way() == []
    assert work.uploaded(1, reference(CONTENT)).status_code == 200
    assert steady.sent < len(CONTENT) + 17 * SLOP


def test_interrupted_upload_repeats_at_most_one_piece(work: Work, site_url: str) -> None:
    lengths = random.Random(7)
    line = Line(site_url, lambda: lengths.randrange(100_000, 250_000))
    send(work, line.address)
    line.close()
    assert whole()
    assert line.cuts >= 4
    assert line.sent < len(CONTENT) + line.cuts * PIECE + 40 * SLOP, "everything else was sent once"


def test_upload_after_lost_reply_sends_nothing_again(work: Work, steady: Line) -> None:
    steady.drop_answers_beyond = len(CONTENT)  # that to the last piece
    send(work, steady.address)
    assert whole()
    assert steady.drop_answers_beyond is None, "it happened"
    assert steady.sent < len(CONTENT) + 20 * SLOP


def test_small_file_is_uploaded_in_one_request(work: Work, steady: Line) -> None:
    send(work, steady.address, b"small")
    assert blob_of(b"small") is not None
    assert not resumable_uploads.list_leases_with_partials()


def test_concurrent_uploads_of_same_bytes_store_one_file(work: Work, site_url: str) -> None:
    with ThreadPoolExecutor(2) as pool:
        for done in [pool.submit(send, work, site_url) for _ in range(2)]:
            done.result(60)
    assert whole()
    assert Blob.objects.filter(sha256=reference(CONTENT).sha256).count() == 1
    assert under_way() == []


def test_upload_with_wrong_hash_is_rejected_and_deleted(work: Work, steady: Line) -> None:
    with pytest.raises(RequestRefusedError, match="Nothing was stored"):
        send(work, steady.address, sha256="ab" * 32)
    assert under_way() == []
    assert not Blob.objects.filter(sha256="ab" * 32).exists()


# --- piece by piece --------------------------------------------------------------------------------------------------


def put(work: Work, first: int, data: bytes, total: int = len(CONTENT), header: str = "") -> HttpResponse:
    return work.agent.client.put(
        f"{ROOT}/leases/{work.lease.lease}/blobs/{reference(CONTENT).sha256}",
        data,
        content_type="application/octet-stream",
        headers={
            **bearer(work.lease.token),
            "Content-Range": header or f"bytes {first}-{first + len(data) - 1}/{total}",
        },
    )


def how_far(work: Work) -> int:
    answer = work.agent.client.head(
        f"{ROOT}/leases/{work.lease.lease}/blobs/{reference(CONTENT).sha256}", headers=bearer(work.lease.token)
    )
    assert answer.status_code == 200
    return int(answer["Upload-Offset"])


def test_upload_offset_is_reported(work: Work) -> None:
    assert how_far(work) == 0
    assert put(work, 0, CONTENT[:1000]).json() == {"received": 1000}
    assert how_far(work) == 1000
    assert put(work, 1000, CONTENT[1000:]).json() == {"received": len(CONTENT)}
    assert how_far(work) == len(CONTENT)
    assert put(work, 5, CONTENT[5:10]).json() == {"received": len(CONTENT)}, "said again, nothing happens"
    assert whole()


def test_overlapping_piece_appends_only_new_bytes(work: Work) -> None:
    put(work, 0, CONTENT[:1000])
    assert put(work, 400, CONTENT[400:600]).json() == {"received": 1000}
    assert put(work, 400, CONTENT[400:5000]).json() == {"received": 5000}
    put(work, 5000, CONTENT[5000:])
    assert whole()


def test_piece_after_a_gap_is_rejected(work: Work) -> None:
    put(work, 0, CONTENT[:1000])
    answer = put(work, 1001, CONTENT[1001:])
    assert answer.status_code == 416
    assert sentence(answer) == "The file has 1,000 bytes so far, and this piece starts at 1,001."


def test_complete_partial_file_is_verified_after_restart(work: Work) -> None:
    put(work, 0, CONTENT[:-1])
    (path,) = under_way()
    with path.open("ab") as file:
        file.write(CONTENT[-1:])
    assert how_far(work) == len(CONTENT) - 1
    assert put(work, len(CONTENT) - 1, CONTENT[-1:]).json() == {"received": len(CONTENT)}
    assert whole()


@pytest.mark.parametrize(
    "header", ["bytes 0-9/5", "bytes 0-3/100", "bytes 5-4/100", "bytes */100", "lines 0-4/100", "bytes 0-4/" + "9" * 40]
)
def test_invalid_content_range_is_rejected(work: Work, header: str) -> None:
    assert put(work, 0, b"hello", header=header).status_code == 422
    assert not resumable_uploads.list_leases_with_partials()


def test_too_large_upload_is_rejected_at_first_piece(work: Work, settings: Settings) -> None:
    settings.BLOB_MAX_BYTES = len(CONTENT) - 1
    assert put(work, 0, CONTENT[:10]).status_code == 413
    settings.BLOB_MAX_BYTES = settings.LEASE_MAX_BYTES = len(CONTENT)
    assert put(work, 0, CONTENT[:1000]).status_code == 200
    other = reference(b"x" * 2000)
    answer = work.agent.client.put(
        f"{ROOT}/leases/{work.lease.lease}/blobs/{other.sha256}",
        b"x" * 10,
        content_type="application/octet-stream",
        headers={**bearer(work.lease.token), "Content-Range": f"bytes 0-9/{len(CONTENT)}"},
    )
    assert answer.status_code == 413, "what is under way counts"


def test_partial_upload_is_deleted_after_lease_ends(work: Work) -> None:
    put(work, 0, CONTENT[:1000])
    retention.delete_expired()
    assert how_far(work) == 1000, "the lease is in force"
    work.finish("released")
    assert put(work, 1000, CONTENT[1000:]).status_code == 409
    retention.delete_expired()
    assert resumable_uploads.list_leases_with_partials() == []
