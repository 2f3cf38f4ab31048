"""Progress of a preparation, in the `result` of its outbox message."""

from __future__ import annotations

import queue
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

from django.utils import timezone

from leaderboard import outbox
from leaderboard.models import OutboxMessage

CLAIM_TIME = timedelta(seconds=60)
WRITE_SECONDS = 1.0
STOP_SECONDS = 10


class ClaimLostError(Exception):
    """The preparation was cancelled, or another process continues it."""


class PreparationProgress:
    """Writes progress at most once a second, which renews the claim. Raises ClaimLostError if that is lost.

    Without a message it ignores what it is told.
    """

    def __init__(self, message: OutboxMessage | None = None) -> None:
        self._message, self._written = message, 0.0
        self._stage: dict[str, Any] = {}

    def begin_stage(self, title: str, total: int | None = None, done: int = 0) -> None:
        """Begin a stage of so many bytes; None if unknown."""
        self._stage = {"stage": title, "done": done, "total": total}
        self._write()

    def update(self, done: int | None = None) -> None:
        """Take note of the bytes that the stage has done. Called at least every second or two, also without news."""
        if done is not None:
            self._stage["done"] = done
        if time.monotonic() - self._written >= WRITE_SECONDS:
            self._write()

    def _write(self) -> None:
        if self._message is None:
            return
        until = timezone.now() + CLAIM_TIME
        if not outbox.filter_claimed(self._message).update(claimed_until=until, result=self._stage):
            raise ClaimLostError
        self._message.claimed_until, self._written = until, time.monotonic()


def read_lines(process: subprocess.Popen[str], progress: PreparationProgress) -> Iterator[str]:
    """Yield the lines of a process's standard output; update the progress also while there are none."""
    lines: queue.SimpleQueue[str | None] = queue.SimpleQueue()

    def read() -> None:
        for line in process.stdout or ():
            lines.put(line)
        lines.put(None)

    threading.Thread(target=read, daemon=True).start()
    while True:
        try:
            line = lines.get(timeout=WRITE_SECONDS)
        except queue.Empty:
            progress.update()
            continue
        if line is None:
            return
        yield line


@contextmanager
def stop_on_error(process: subprocess.Popen[str]) -> Iterator[None]:
    """End the process if an exception leaves the block. What it has saved is kept."""
    try:
        yield
    except BaseException:
        process.terminate()
        try:
            process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
        raise


def count_bytes(read: Callable[[int], bytes], progress: PreparationProgress, start: int) -> Callable[[int], bytes]:
    """Return a `read` of a file that reports its bytes on top of `start`."""
    done = start

    def read_and_count(size: int) -> bytes:
        nonlocal done
        data = read(size)
        done += len(data)
        progress.update(done)
        return data

    return read_and_count
