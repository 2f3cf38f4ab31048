"""A full disk for a process and its descendants, without root and without a separate file system.

`set_disk_full` uses RLIMIT_FSIZE: every write to a file fails with EFBIG, and Python ignores the signal that comes with
it. `build_library` is for programs that tell ENOSPC from EFBIG, such as PostgreSQL.
"""

from __future__ import annotations

import resource
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil


def build_library(folder: Path) -> Path:
    """Compile what a program loads first (LD_PRELOAD): no file can grow while the file named by FULL_DISK exists."""
    library = folder / "full_disk.so"
    source = Path(__file__).with_suffix(".c")
    subprocess.run(["cc", "-shared", "-fPIC", "-Wall", "-Werror", "-o", library, source, "-ldl"], check=True)
    return library


def set_disk_full(pid: int, is_full: bool) -> None:
    """Set the limit of a process before its children are listed: those that it starts later inherit it."""
    try:
        _, hard = resource.prlimit(pid, resource.RLIMIT_FSIZE)
        resource.prlimit(pid, resource.RLIMIT_FSIZE, (0 if is_full else hard, hard))
        children = psutil.Process(pid).children()
    except (ProcessLookupError, psutil.NoSuchProcess):
        return  # it has just ended
    for child in children:
        set_disk_full(child.pid, is_full)


@contextmanager
def full_disk(pid: int) -> Iterator[None]:
    set_disk_full(pid, True)
    try:
        yield
    finally:
        set_disk_full(pid, False)
