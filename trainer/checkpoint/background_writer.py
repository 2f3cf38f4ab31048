"""Checkpoints written beside the training: the loop copies what it has and goes on, a thread takes it to the disk."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from typing import Any


class Writer:
    """At most one thing is being written. What went wrong is raised at the next call, in the loop's own thread.

    A process that is killed meanwhile leaves the checkpoint before: a new one counts from its last renaming on.
    """

    def __init__(self) -> None:
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="checkpoint")
        self._writing: Future[Any] | None = None

    def begin(self, write: Callable[[], Any]) -> None:
        """Start to write, once what is being written is done."""
        self.wait()
        self._writing = self._thread.submit(write)

    def check(self) -> None:
        """Raise what the writing ended with, if it has."""
        if self._writing is not None and self._writing.done():
            self.wait()

    def wait(self) -> None:
        """Return when all is on the disk."""
        writing, self._writing = self._writing, None
        if writing is not None:
            writing.result()

    def close(self) -> None:
        """End the thread, whatever becomes of what it is writing: for a run that has ended otherwise already."""
        with suppress(Exception):
            self.wait()
        self._thread.shutdown()
