"""A limit of the bytes per second that a node uploads, shared by all of its transfers."""

from __future__ import annotations

import threading
import time

CHUNK_BYTES = 1 << 20
CHUNKS_PER_SECOND = 4  # so that a slow upload is steady and no proxy closes it


class UploadRate:
    """Each chunk waits until those before it have had their time. Thread-safe."""

    def __init__(self, bytes_per_second: int | None = None) -> None:
        """None: no limit."""
        self.bytes_per_second = bytes_per_second
        self._lock = threading.Lock()
        self._free_at = 0.0

    @property
    def chunk_bytes(self) -> int:
        limit = self.bytes_per_second
        return CHUNK_BYTES if limit is None else max(1, min(CHUNK_BYTES, limit // CHUNKS_PER_SECOND))

    def wait_for(self, size: int) -> None:
        """Wait until `size` bytes may be sent."""
        if self.bytes_per_second is None:
            return
        with self._lock:
            now = time.monotonic()
            start = max(now, self._free_at)
            self._free_at = start + size / self.bytes_per_second
        time.sleep(start - now)
