"""The disk space of a node: what its caches hold and what its jobs may write stays within the quota.

The quota is the smaller one of `dailytrain node --disk` and what the owner lends on the site; without either, only the
free disk counts. Caches that no job uses are evicted when a job needs their space, least recently used first.
"""

from __future__ import annotations

import os
import shutil
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from trainer.node.console import log
from trainer.node.outcome import JobFailedError

DATASETS, RELEASES, WORK = "datasets", "blobs", "work"
PREPARING = ".preparing"
"""First part of the names of folders in which this machine prepares datasets. The agent removes them when it starts."""
EVICTABLE_FILES = ("weights", "evaluation")  # folders of `BlobCache`s whose files jobs link or copy
GB = 10**9
FRESH_SECONDS = 600  # a cached file that was requested so recently may not have been linked yet


@dataclass(frozen=True)
class CacheItem:
    path: Path
    size: int
    used_at: float
    in_use: bool


class DiskQuota:
    """Thread-safe; shared by all slots."""

    def __init__(self, home: Path, limit: int | None = None) -> None:
        """`limit`: bytes; None: what is free."""
        self.home = home
        self._limits: dict[str, int | None] = {"sponsor": limit}
        self._lock = threading.Lock()
        self._reserved: dict[int, int] = {}  # bytes that the job of a lease may write
        self._datasets: dict[int, str] = {}  # hash of the dataset that it uses
        self._downloads: dict[str, int] = {}  # hash of a dataset that is being downloaded: its bytes in the end

    @property
    def limit(self) -> int | None:
        return min((limit for limit in self._limits.values() if limit is not None), default=None)

    def set_lent_bytes(self, limit: int | None) -> None:
        """Set what the owner lends on the site; None: all that is free."""
        self._limits["site"] = limit

    def get_available_bytes(self) -> int:
        """Return how much the next job and its dataset may use, once all caches that no job uses are evicted."""
        with self._lock:
            return max(0, self._count_available(list(self._list_items())))

    def reserve(self, lease: int, size: int) -> None:
        """Reserve what a job may write and evict caches for it. Raise `JobFailedError` if it exceeds the quota."""
        with self._lock:
            self._make_room(size)
            self._reserved[lease] = size

    @contextmanager
    def use_dataset(self, lease: int, dataset_hash: str, missing_bytes: int = 0) -> Iterator[None]:
        """Protect a job's dataset from eviction until the job's `release`.

        Within the context, the space of what it still has to download is reserved.
        """
        folder = self.home / DATASETS / dataset_hash
        with self._lock:
            self._datasets[lease] = dataset_hash
            if folder.is_dir():
                os.utime(folder)
            self._make_room(missing_bytes)
            self._downloads[dataset_hash] = measure_folder(folder) + missing_bytes
        try:
            yield
        finally:
            with self._lock:
                self._downloads.pop(dataset_hash, None)

    def release(self, lease: int) -> None:
        with self._lock:
            self._reserved.pop(lease, None)
            self._datasets.pop(lease, None)

    def _make_room(self, size: int) -> None:
        items = list(self._list_items())
        if self.limit is not None and self._count_available(items) < size:
            left = self._count_available(items)
            raise JobFailedError(
                f"The job needs {size / GB:,.2f} GB of disk; of its quota this node has {left / GB:,.2f}."
            )
        for item in sorted(items, key=lambda item: item.used_at):
            if self._count_free(items) >= size:
                return
            if not item.in_use:
                log.info("Evicting %s from the cache: a job needs the space.", item.path.name)
                remove(item.path)
                items.remove(item)

    def _count_free(self, items: list[CacheItem]) -> int:
        """Return the bytes that are neither used nor reserved."""
        pending = self._count_pending()
        free = shutil.disk_usage(self.home).free - self._count_unwritten() - pending
        if (limit := self.limit) is None:
            return free
        return min(free, limit - sum(self._reserved.values()) - sum(item.size for item in items) - pending)

    def _count_available(self, items: list[CacheItem]) -> int:
        return self._count_free(items) + sum(item.size for item in items if not item.in_use)

    def _count_pending(self) -> int:
        """Return the bytes that downloads of datasets will still write."""
        sizes = ((size, measure_folder(self.home / DATASETS / name)) for name, size in self._downloads.items())
        return sum(max(0, size - written) for size, written in sizes)

    def _count_unwritten(self) -> int:
        """Return the bytes that jobs may still write."""
        sizes = ((size, measure_folder(self.home / WORK / str(lease))) for lease, size in self._reserved.items())
        return sum(max(0, size - written) for size, written in sizes)

    def _list_items(self) -> Iterator[CacheItem]:
        """List what the cache holds. Another slot may rename a file meanwhile; that file is left out."""
        used = set(self._datasets.values())
        for folder in list_entries(self.home / DATASETS):
            in_use = folder.name in used or folder.name.startswith(".")  # one that is being prepared
            with suppress(FileNotFoundError):
                yield CacheItem(folder, measure_folder(folder), folder.stat().st_mtime, in_use)
        for name in (*EVICTABLE_FILES, RELEASES):
            for file in list_entries(self.home / name):
                with suppress(FileNotFoundError):
                    stat = file.stat()
                    in_use = name == RELEASES or time.time() - stat.st_mtime < FRESH_SECONDS
                    yield CacheItem(file, stat.st_size, stat.st_mtime, in_use)


def list_entries(folder: Path) -> list[Path]:
    return sorted(folder.iterdir()) if folder.is_dir() else []


def measure_folder(folder: Path) -> int:
    """Return the bytes of all files; those that vanish meanwhile count nothing."""
    total = 0
    for parent, _, names in os.walk(folder):
        for name in names:
            try:
                total += Path(parent, name).lstat().st_size
            except FileNotFoundError:
                continue
    return total


def remove(path: Path) -> None:
    if path.is_dir():
        manifest = path / "manifest.json"
        manifest.unlink(missing_ok=True)  # first: what is left is not a dataset
        shutil.rmtree(path, ignore_errors=True)
    else:
        path.unlink(missing_ok=True)
