"""A cache of downloaded files by hash: releases, entries, evaluation data, the weights of models that generate text."""

from __future__ import annotations

import math
import threading
from collections.abc import Callable
from pathlib import Path

from trainer.protocol import FileRef
from trainer.protocol.files import hash_file

MAX_FILES = 128  # the least recently used are removed first


class BlobCache:
    def __init__(self, folder: Path, max_bytes: float = math.inf) -> None:
        """`max_bytes`: of all files together; the file requested last stays in any case."""
        self.folder = folder
        self.max_bytes = max_bytes
        folder.mkdir(parents=True, exist_ok=True)
        self._lock = threading.Lock()

    def get(self, file: FileRef, fetch: Callable[[FileRef, Path], None]) -> Path:
        """Return the file's path; `fetch` writes its verified bytes to a path if it is missing or damaged."""
        path = self.folder / file.sha256
        with self._lock:  # another slot may need the same file
            if not path.is_file() or hash_file(path) != file.sha256:
                partial = path.with_suffix(".partial")
                fetch(file, partial)
                partial.replace(path)
            path.touch()
            self._remove_old_files()
        return path

    def _remove_old_files(self) -> None:
        total = 0
        latest_first = sorted(self.folder.iterdir(), key=lambda path: path.stat().st_mtime, reverse=True)
        for number, path in enumerate(latest_first):
            total += path.stat().st_size
            if number and (number >= MAX_FILES or total > self.max_bytes):
                path.unlink()
