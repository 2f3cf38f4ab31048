"""Write checkpoints in a background thread while training continues."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from typing import Any


class CheckpointWriter:
    """Runs one write at a time. Its error is raised by the next call, in the training thread.

    If the process is killed meanwhile, the previous checkpoint remains: the new one is renamed into place last.
    """

    def __init__(self) -> None:
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="checkpoint")
        self._writing: Future[Any] | None = None

    def begin(self, write: Callable[[], Any]) -> None:
        """Start a write after the previous one has finished."""
        self.wait()
        self._writing = self._thread.submit(write)

    def check(self) -> None:
        """Raise the error of a finished write, if any."""
        if self._writing is not None and self._writing.done():
            self.wait()

    def wait(self) -> None:
        """Wait until everything is on disk."""
        writing, self._writing = self._writing, None
        if writing is not None:
            writing.result()

    def close(self) -> None:
        """End the thread and ignore errors of its write, for a run that has already ended."""
        with suppress(Exception):
            self.wait()
        self._thread.shutdown()
