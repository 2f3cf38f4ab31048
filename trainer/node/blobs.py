"""Files that were fetched before, by their hash: releases, entries, the weights of models that write for visitors."""

from __future__ import annotations

import hashlib
import math
import threading
from collections.abc import Callable
from pathlib import Path

from trainer.protocol import FileRef

KEPT = 64
"""Files; the least recently used go first."""


class BlobCache:
    def __init__(self, folder: Path, most_bytes: float = math.inf) -> None:
        """`most_bytes`: of all files together; what was asked for last is kept in any case."""
        self.folder = folder
        self.most_bytes = most_bytes
        folder.mkdir(parents=True, exist_ok=True)
        self._lock = threading.Lock()

    def get(self, file: FileRef, fetch: Callable[[FileRef, Path], None]) -> Path:
        """Return the file's place; `fetch` writes its checked bytes to a path if it is not here, or no longer whole."""
        with self._lock:  # another lane may want the same one
            return self._get(file, fetch)

    def _get(self, file: FileRef, fetch: Callable[[FileRef, Path], None]) -> Path:
        path = self.folder / file.sha256
        if not path.is_file() or hash_file(path) != file.sha256:
            aside = path.with_suffix(".partial")
            fetch(file, aside)
            aside.replace(path)
        path.touch()
        self._prune()
        return path

    def _prune(self) -> None:
        total = 0
        latest_first = sorted(self.folder.iterdir(), key=lambda path: path.stat().st_mtime, reverse=True)
        for number, path in enumerate(latest_first):
            total += path.stat().st_size
            if number and (number >= KEPT or total > self.most_bytes):
                path.unlink()


def hash_file(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
