"""Progress reports of a preparation. The base class is for a preparation without a row."""

from __future__ import annotations

import queue
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta

from django.utils import timezone

from leaderboard.models import SeasonPreparation

CLAIM_TIME = timedelta(seconds=60)
WRITE_SECONDS = 1.0
STOP_SECONDS = 10


class ClaimLostError(Exception):
    """The preparation was cancelled, or another process continues it."""


class PreparationProgress:
    """Gets the stages of a preparation and ignores them."""

    def begin_stage(self, title: str, total: int | None = None, done: int = 0) -> None:
        """Begin a stage of so many bytes; None if unknown."""

    def update(self, done: int | None = None) -> None:
        """Take note of the bytes that the stage has done. Called at least every second or two, also without news."""


class RowProgress(PreparationProgress):
    """Writes progress to a row at most once a second, which renews the claim. Raises ClaimLostError if that is lost."""

    def __init__(self, preparation: SeasonPreparation) -> None:
        self._row = SeasonPreparation.objects.filter(
            pk=preparation.pk, state=SeasonPreparation.State.RUNNING, claim=preparation.claim
        )
        self._done, self._written = 0, 0.0

    def begin_stage(self, title: str, total: int | None = None, done: int = 0) -> None:
        self._done = done
        stage = {"stage": title, "total_bytes": total, "stage_started_bytes": done, "stage_started_at": timezone.now()}
        self._write(**stage)

    def update(self, done: int | None = None) -> None:
        self._done = self._done if done is None else done
        if time.monotonic() - self._written >= WRITE_SECONDS:
            self._write()

    def _write(self, **stage: object) -> None:
        now = timezone.now()
        values = {"done_bytes": self._done, "updated_at": now, "claimed_until": now + CLAIM_TIME, **stage}
        if not self._row.update(**values):
            raise ClaimLostError
        self._written = time.monotonic()


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
