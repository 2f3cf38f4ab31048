"""Releases and entries that were fetched before, by their hash."""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Callable
from pathlib import Path

from trainer.wire import FileRef

KEPT = 64
"""Files; the least recently used go first."""


class Blobs:
    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir(parents=True, exist_ok=True)
        self._lock = threading.Lock()

    def get(self, file: FileRef, fetch: Callable[[FileRef, Path], None]) -> Path:
        """Return the file's place; `fetch` writes its checked bytes to a path if it is not here, or no longer whole."""
        with self._lock:  # another lane may want the same one
            return self._get(file, fetch)

    def _get(self, file: FileRef, fetch: Callable[[FileRef, Path], None]) -> Path:
        path = self.folder / file.sha256
        if not path.is_file() or hashlib.sha256(path.read_bytes()).hexdigest() != file.sha256:
            aside = path.with_suffix(".partial")
            fetch(file, aside)
            aside.replace(path)
        path.touch()
        self._prune()
        return path

    def _prune(self) -> None:
        for path in sorted(self.folder.iterdir(), key=lambda path: path.stat().st_mtime, reverse=True)[KEPT:]:
            path.unlink()
