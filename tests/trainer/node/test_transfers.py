"""Files over a connection that breaks, their cache, the limit of uploads, and responses that are not successes."""

from __future__ import annotations

import hashlib
import io
import os
import random
import re
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace

import httpx
import pytest

from tests.support.http_server import Handler, run_server
from tests.support.waits import WAIT_SECONDS
from trainer.node import blobs
from trainer.node import client as site_client
from trainer.node.blobs import BlobCache
from trainer.node.client import (
    DamagedFileError,
    RequestRefusedError,
    ServerUnreachableError,
    SiteClient,
    UploadRate,
    check_response,
    read_chunks,
)
from trainer.node.disk_quota import FRESH_SECONDS
from trainer.node.transfers import FileDownload, download_file
from trainer.protocol import FileRef

CONTENT = random.Random(11).randbytes(3 << 20)
FILE = FileRef(path="model.safetensors", sha256=hashlib.sha256(CONTENT).hexdigest(), size=len(CONTENT))


@dataclass
class Store:
    """A server of one file whose connections break after the given numbers of bytes."""

    content: bytes = CONTENT
    cuts: list[int] = field(default_factory=list)
    """Bytes after which the connections of the next responses are closed. Later responses are complete."""
    knows_ranges: bool = True
    offsets: list[int] = field(default_factory=list)
    """First byte of each request."""
    sent: int = 0
    address: str = ""


class StoreHandler(Handler):
    store: Store

    def do_GET(self) -> None:
        store = self.store
        match = re.fullmatch(r"bytes=(\d+)-", self.headers.get("Range", ""))
        store.offsets.append(int(match[1]) if match else 0)
        first, size = store.offsets[-1] if store.knows_ranges else 0, len(store.content)
        if first and first >= size:
            self.send(416)
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


@pytest.fixture
def store(monkeypatch: pytest.MonkeyPatch) -> Iterator[Store]:
    monkeypatch.setattr(site_client, "BACKOFF_SECONDS", 0.01)
    store = Store()
    with run_server(StoreHandler, store=store) as store.address:
        yield store


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


@pytest.mark.parametrize(
    ("partial", "offsets"),
    [(CONTENT[:2_000_000], [2_000_000]), (b"x" * 1_000_000, [1_000_000, 0]), (CONTENT + b"x", [0])],
    ids=["of this file", "of another file", "too large"],
)
def test_blob_cache_with_a_partial_file_resumes_or_restarts(
    store: Store, client: SiteClient, tmp_path: Path, partial: bytes, offsets: list[int]
) -> None:
    (tmp_path / f"{FILE.sha256}.partial").write_bytes(partial)
    cache = BlobCache(tmp_path)
    path = cache.get(FILE, lambda file, target: download_file(client, "/x", file, target, lambda: False), lambda: None)
    assert path.read_bytes() == CONTENT
    assert store.offsets == offsets


def test_download_without_range_support_restarts(store: Store, client: SiteClient, tmp_path: Path) -> None:
    store.knows_ranges = False
    store.cuts = [2_000_000]
    assert download_content(client, tmp_path / "file") == CONTENT
    assert store.offsets == [0, 2_000_000]


@pytest.mark.parametrize("content", [CONTENT[:-1] + b"?", CONTENT + b"?"], ids=["other bytes", "too many"])
def test_download_with_wrong_content_raises(store: Store, client: SiteClient, tmp_path: Path, content: bytes) -> None:
    store.content = content
    with pytest.raises(DamagedFileError, match="its SHA-256 differs"):
        download_content(client, tmp_path / "file")
    assert store.offsets == [0]


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """A fake clock that only `sleep` advances."""
    now = [100.0]

    def sleep(seconds: float) -> None:
        now[0] += seconds

    monkeypatch.setattr(site_client, "time", SimpleNamespace(monotonic=lambda: now[0], sleep=sleep))
    return now


def send(rate: UploadRate, size: int) -> list[int]:
    content = io.BufferedReader(io.BytesIO(bytes(size)))  # type: ignore[arg-type]
    return [len(chunk) for chunk in read_chunks(content, size, rate)]


def test_upload_takes_the_time_of_its_rate_in_steady_chunks(clock: list[float]) -> None:
    chunks = send(UploadRate(1_000_000), 10_000_000)
    assert sum(chunks) == 10_000_000
    assert set(chunks) == {250_000}
    assert clock[0] - 100 == pytest.approx(10, abs=0.3)


ADDRESS = "http://site.example/api/node/v1/poll"


def test_redirect_names_the_address_to_start_with() -> None:
    headers = {"Location": "https://other.example/train/api/node/v1/poll"}
    with pytest.raises(RequestRefusedError, match=r"start with --server https://other\.example/train\.$"):
        check_response(httpx.Response(301, headers=headers, request=httpx.Request("POST", ADDRESS)))


# --- the cache of downloaded files ------------------------------------------------------------------------------------


class Site:
    """Counts what is fetched from it."""

    def __init__(self) -> None:
        self.fetched: list[str] = []

    def file(self, content: bytes) -> FileRef:
        return FileRef(path=content.decode(), sha256=hashlib.sha256(content).hexdigest(), size=len(content))

    def fetch(self, file: FileRef, target: Path) -> None:
        self.fetched.append(file.path)
        target.write_bytes(file.path.encode())


def get(cache: BlobCache, file: FileRef, fetch: Callable[[FileRef, Path], None]) -> Path:
    return cache.get(file, fetch, lambda: None)


def age(path: Path, seconds: float) -> None:
    os.utime(path, (path.stat().st_atime, path.stat().st_mtime - seconds))


def test_blob_cache_with_a_damaged_file_fetches_it_again(tmp_path: Path) -> None:
    site, cache = Site(), BlobCache(tmp_path / "weights")
    file = site.file(b"weights")
    path = get(cache, file, site.fetch)
    assert get(cache, file, site.fetch) == path
    assert site.fetched == ["weights"]
    path.write_bytes(b"weighty")
    assert get(cache, file, site.fetch).read_bytes() == b"weights"
    assert site.fetched == ["weights", "weights"]


def test_blob_cache_when_full_removes_old_files_that_no_slot_may_still_link(tmp_path: Path) -> None:
    site, cache = Site(), BlobCache(tmp_path / "weights", max_bytes=10)
    first, second, third = (site.file(content) for content in (b"first", b"second", b"third"))
    paths = [get(cache, file, site.fetch) for file in (first, second)]
    assert all(path.exists() for path in paths), "both are fresh"
    for number, path in enumerate(paths):
        age(path, FRESH_SECONDS + 2 - number)
    assert get(cache, third, site.fetch).exists()
    assert {path.name for path in (tmp_path / "weights").iterdir()} == {third.sha256}


def test_blob_cache_fetches_a_file_that_is_evicted_while_it_is_requested(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    site, cache = Site(), BlobCache(tmp_path / "weights")
    file = site.file(b"weights")
    path = get(cache, file, site.fetch)
    age(path, 2 * FRESH_SECONDS)
    hash_whole_file = blobs.hash_file

    def evict(path: Path) -> str:
        found = hash_whole_file(path)
        if time.time() - path.stat().st_mtime > FRESH_SECONDS:  # as `DiskQuota` does
            path.unlink()
        return found

    monkeypatch.setattr(blobs, "hash_file", evict)
    assert get(cache, file, site.fetch).read_bytes() == b"weights"


def test_download_of_one_file_does_not_stall_another(tmp_path: Path) -> None:
    site, cache = Site(), BlobCache(tmp_path / "weights")
    large, small = site.file(b"large"), site.file(b"small")

    def fetch_both(file: FileRef, target: Path) -> None:
        other = threading.Thread(target=get, args=(cache, small, site.fetch), daemon=True)
        other.start()
        other.join(WAIT_SECONDS)
        site.fetch(file, target)

    get(cache, large, fetch_both)
    assert site.fetched == ["small", "large"]


def test_slot_that_waits_for_a_download_stops_on_request(tmp_path: Path) -> None:
    site, cache = Site(), BlobCache(tmp_path / "weights")
    file = site.file(b"weights")

    def stop() -> None:
        raise InterruptedError

    def request_again(same: FileRef, target: Path) -> None:
        with pytest.raises(InterruptedError):
            cache.get(file, site.fetch, stop)
        site.fetch(same, target)

    assert get(cache, file, request_again).read_bytes() == b"weights"
