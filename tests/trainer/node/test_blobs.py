"""The cache of downloaded files: damaged files are fetched again, and the oldest are evicted."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

from trainer.node.blobs import BlobCache
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


def test_blob_cache_with_a_damaged_file_fetches_it_again(tmp_path: Path) -> None:
    site, cache = Site(), BlobCache(tmp_path / "weights")
    file = site.file(b"weights")
    path = cache.get(file, site.fetch)
    assert cache.get(file, site.fetch) == path
    assert site.fetched == ["weights"]
    path.write_bytes(b"weighty")
    assert cache.get(file, site.fetch).read_bytes() == b"weights"
    assert site.fetched == ["weights", "weights"]


def test_blob_cache_when_full_removes_the_least_recently_used(tmp_path: Path) -> None:
    site, cache = Site(), BlobCache(tmp_path / "weights", max_bytes=10)
    first, second, third = (site.file(content) for content in (b"first", b"second", b"third"))
    for age, file in ((30, first), (20, second)):
        path = cache.get(file, site.fetch)
        os.utime(path, (path.stat().st_atime, path.stat().st_mtime - age))
    cache.get(third, site.fetch)
    assert {path.name for path in (tmp_path / "weights").iterdir()} == {third.sha256}
    cache.get(site.file(b"more than there is room for"), site.fetch)
    assert len(list((tmp_path / "weights").iterdir())) == 1, "the file requested last is there in any case"
