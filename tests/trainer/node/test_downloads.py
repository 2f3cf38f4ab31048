"""Downloads over a real socket resume after a broken connection, and the whole file is verified."""

from __future__ import annotations

import hashlib
import random
import re
import threading
from collections.abc import Iterator
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from trainer.node import client as agent_client
from trainer.node.blobs import BlobCache
from trainer.node.client import DamagedFileError, GaveUpError, ServerUnreachableError, SiteClient
from trainer.node.transfers import FileDownload, download_file
from trainer.protocol import FileRef

CONTENT = random.Random(11).randbytes(3 << 20)
FILE = FileRef(path="model.safetensors", sha256=hashlib.sha256(CONTENT).hexdigest(), size=len(CONTENT))


class Store:
    """A server of one file whose connections break after the given numbers of bytes."""

    def __init__(self) -> None:
        self.content = CONTENT
        self.cuts: list[int] = []
        """Bytes after which the connections of the next responses are closed. Later responses are complete."""
        self.knows_ranges = True
        self.offsets: list[int] = []
        """First byte of each request."""
        self.sent = 0
        store = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def log_message(self, *_: object) -> None:
                pass

            def do_GET(self) -> None:
                match = re.fullmatch(r"bytes=(\d+)-", self.headers.get("Range", ""))
                first = int(match[1]) if match else 0
                store.offsets.append(first)
                size = len(store.content)
                if not store.knows_ranges:
                    first = 0
                if first and first >= size:
                    self.send_response(416)
                    self.send_header("Content-Length", "0")
                    self.end_headers()
                    return
                self.send_response(206 if first else 200)
                if first:
                    self.send_header("Content-Range", f"bytes {first}-{size - 1}/{size}")
                self.send_header("Content-Length", str(size - first))
                self.end_headers()
                body = store.content[first:]
                cut = store.cuts.pop(0) if store.cuts else len(body)
                store.sent += min(cut, len(body))  # counted before the client receives them
                self.wfile.write(body[:cut])
                self.close_connection = cut < len(body)

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.address = f"http://127.0.0.1:{self._server.server_address[1]}"
        threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True).start()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()


@pytest.fixture
def store(monkeypatch: pytest.MonkeyPatch) -> Iterator[Store]:
    monkeypatch.setattr(agent_client, "BACKOFF_SECONDS", 0.01)
    made = Store()
    yield made
    made.close()


@pytest.fixture
def client(store: Store) -> Iterator[SiteClient]:
    made = SiteClient(store.address, "token")
    yield made
    made.close()


def download_content(client: SiteClient, target: Path) -> bytes:
    download_file(client, "/leases/1/blobs/x", FILE, target, lambda: False)
    return target.read_bytes()


def test_download_cut_in_the_middle_keeps_received_bytes(store: Store, client: SiteClient, tmp_path: Path) -> None:
    store.cuts = [1_000_000, 100, 0, 1_500_000]
    assert download_content(client, tmp_path / "file") == CONTENT
    assert store.offsets == [0, 1_000_000, 1_000_100, 1_000_100, 2_500_100]
    assert store.sent == len(CONTENT), "every byte was sent once"


def test_download_whose_partial_file_is_evicted_restarts(store: Store, client: SiteClient, tmp_path: Path) -> None:
    target = tmp_path / "file"
    store.cuts = [1_000_000]
    download = FileDownload(client, "/leases/1/blobs/x", FILE, target, lambda: False)
    with suppress(ServerUnreachableError):
        download._fetch()
    target.unlink()
    download.complete()
    assert target.read_bytes() == CONTENT
    assert store.offsets == [0, 0]


def test_download_without_range_support_restarts(store: Store, client: SiteClient, tmp_path: Path) -> None:
    store.knows_ranges = False
    store.cuts = [2_000_000]
    assert download_content(client, tmp_path / "file") == CONTENT
    assert store.offsets == [0, 2_000_000]


def test_download_with_parts_of_two_files_restarts(store: Store, client: SiteClient, tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"x" * 1_000_000)  # bytes of another file
    assert download_content(client, tmp_path / "file") == CONTENT
    assert store.offsets == [1_000_000, 0]


def test_download_with_an_oversized_partial_file_restarts(store: Store, client: SiteClient, tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(CONTENT + b"x")
    assert download_content(client, tmp_path / "file") == CONTENT
    assert store.offsets == [0]


@pytest.mark.parametrize("content", [CONTENT[:-1] + b"?", CONTENT + b"?"], ids=["other bytes", "too many"])
def test_download_with_wrong_content_raises(store: Store, client: SiteClient, tmp_path: Path, content: bytes) -> None:
    store.content = content
    with pytest.raises(DamagedFileError, match="its SHA-256 differs"):
        download_content(client, tmp_path / "file")
    assert store.offsets == [0]


def test_download_of_a_short_file_retries_until_given_up(store: Store, client: SiteClient, tmp_path: Path) -> None:
    store.content = CONTENT[:1000]
    with pytest.raises(GaveUpError):
        download_file(client, "/leases/1/blobs/x", FILE, tmp_path / "file", lambda: len(store.offsets) > 4)


def test_download_of_an_empty_file_creates_it(store: Store, client: SiteClient, tmp_path: Path) -> None:
    store.content = b""
    empty = FileRef(path="empty", sha256=hashlib.sha256(b"").hexdigest(), size=0)
    download_file(client, "/leases/1/blobs/x", empty, tmp_path / "file", lambda: False)
    assert (tmp_path / "file").read_bytes() == b""


def test_blob_cache_with_a_partial_file_resumes_the_download(store: Store, client: SiteClient, tmp_path: Path) -> None:
    (tmp_path / f"{FILE.sha256}.partial").write_bytes(CONTENT[:2_000_000])
    path = BlobCache(tmp_path).get(
        FILE, lambda file, to: download_file(client, "/leases/1/blobs/x", file, to, lambda: False), lambda: None
    )
    assert path.read_bytes() == CONTENT
    assert store.offsets == [2_000_000]
