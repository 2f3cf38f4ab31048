"""The cache of downloaded files: damaged files are fetched again, and the oldest are evicted."""

from __future__ import annotations

import hashlib
import os
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support.waits import WAIT_SECONDS
from trainer.node import blobs
from trainer.node.blobs import BlobCache
from trainer.node.disk_quota import FRESH_SECONDS
from trainer.protocol import FileRef


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
