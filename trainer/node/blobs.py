"""A cache of downloaded files by hash: releases, entries, evaluation data, the weights of models that generate text."""

from __future__ import annotations

import math
import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from trainer.node.disk_quota import FRESH_SECONDS
from trainer.protocol import FileRef
from trainer.protocol.files import hash_file

MAX_FILES = 128  # the least recently used are removed first
LOCK_SECONDS = 0.2  # interval between two checks of the stop signal while waiting for a lock


class KeyedLocks:
    """A lock for each key: slots wait for each other only for the same file or dataset."""

    def __init__(self) -> None:
        self._locks: dict[str, threading.Lock] = {}

    @contextmanager
    def hold(self, key: str, check_stop: Callable[[], None]) -> Iterator[None]:
        """Hold the key's lock. `check_stop` raises to end the wait for it."""
        lock = self._locks.setdefault(key, threading.Lock())
        while not lock.acquire(timeout=LOCK_SECONDS):
            check_stop()
        try:
            yield
        finally:
            lock.release()


class BlobCache:
    def __init__(self, folder: Path, max_bytes: float = math.inf) -> None:
        """`max_bytes`: of all files together; those requested lately stay in any case."""
        self.folder = folder
        self.max_bytes = max_bytes
        folder.mkdir(parents=True, exist_ok=True)
        self._locks = KeyedLocks()

    def get(self, file: FileRef, fetch: Callable[[FileRef, Path], None], check_stop: Callable[[], None]) -> Path:
        """Return the file's path; `fetch` writes its verified bytes to a path if it is missing or damaged.

        The file stays for `FRESH_SECONDS`. `check_stop`: as of `KeyedLocks`.
        """
        path = self.folder / file.sha256
        with self._locks.hold(file.sha256, check_stop):
            if not is_intact(path, file.sha256):
                partial = path.with_suffix(".partial")
                fetch(file, partial)
                partial.replace(path)
            self._remove_old_files()
        return path

    def _remove_old_files(self) -> None:
        """Remove files above the limits that are not fresh. `DiskQuota` may evict some of them meanwhile."""
        files, total = [], 0
        for path in self.folder.iterdir():
            with suppress(FileNotFoundError):
                files.append((path.stat(), path))
        files.sort(key=lambda file: file[0].st_mtime, reverse=True)
        for number, (stat, path) in enumerate(files):
            total += stat.st_size
            is_fresh = time.time() - stat.st_mtime < FRESH_SECONDS
            if not is_fresh and (number >= MAX_FILES or total > self.max_bytes):
                path.unlink(missing_ok=True)


def is_intact(path: Path, sha256: str) -> bool:
    """Mark a file as used, which protects it from eviction, and return whether it has this hash."""
    try:
        os.utime(path)
        return hash_file(path) == sha256
    except FileNotFoundError:
        return False
