"""One process at a time: an advisory lock on a file, which the kernel lets go when its holder dies."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def locked(path: Path, on_wait: Callable[[], None]) -> Iterator[None]:
    """Hold the lock that `path` names, waiting for it; call `on_wait` once if another process holds it.

    The file is removed at the end, so no litter stays beside what it guarded.
    """
    descriptor = _acquire(path, on_wait)
    try:
        yield
    finally:
        path.unlink(missing_ok=True)
        os.close(descriptor)


def _acquire(path: Path, on_wait: Callable[[], None]) -> int:
    told = False
    while True:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if not told:
                on_wait()
                told = True
            fcntl.flock(descriptor, fcntl.LOCK_EX)
        # The last holder removed the file that we waited on: the lock is then on a file nobody else will find.
        if _is_same_file(descriptor, path):
            return descriptor
        os.close(descriptor)


def _is_same_file(descriptor: int, path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(descriptor), path.stat())
    except FileNotFoundError:
        return False
