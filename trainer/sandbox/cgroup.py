"""A control group for one box, where this system lets us make one: the kernel itself then stops a fork bomb.

RLIMIT_NPROC does the same for an ordinary user and does not bind root; root may make control groups. Between them one
of the two holds. Source: the kernel's admin-guide/cgroup-v1/pids and admin-guide/cgroup-v2.
"""

from __future__ import annotations

import os
import time
from contextlib import suppress
from itertools import count
from pathlib import Path

MEMBERSHIP = Path("/proc/self/cgroup")
ROOTS = (Path("/sys/fs/cgroup/pids"), Path("/sys/fs/cgroup"))
"""Where the `pids` controller is: its own hierarchy (version 1), or the only one (version 2)."""
REMOVAL_SECONDS = 2.0
NUMBERS = count(1)


class ControlGroup:
    """Bounds how many tasks (processes and their threads) live in it."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    @classmethod
    def make(cls, tasks: int) -> ControlGroup | None:
        """Return a new group for at most so many tasks, or None where we may not make one."""
        for parent in parents():
            folder = parent / f"dailytrain-{os.getpid()}-{next(NUMBERS)}"
            try:
                folder.mkdir()
            except OSError:
                continue
            group = cls(folder)
            try:
                # Opened without O_CREAT: a folder that is no control group has no such file.
                write(folder / "pids.max", str(tasks))
            except OSError:
                group.remove()
                continue
            return group
        return None

    def join(self) -> None:
        """Put the calling process in. To be called between fork and exec: it only writes a file."""
        write(self._folder / "cgroup.procs", "0")

    def remove(self) -> None:
        """Give it back once its last process is gone; the kernel needs a moment to notice."""
        deadline = time.monotonic() + REMOVAL_SECONDS
        while self._folder.exists():
            with suppress(OSError):
                self._folder.rmdir()
                return
            if time.monotonic() > deadline:
                return
            time.sleep(0.01)


def parents() -> list[Path]:
    """Return the folders of the groups that this process is in, where the `pids` controller might be."""
    try:
        lines = MEMBERSHIP.read_text().splitlines()
    except OSError:
        return []
    found = []
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if controllers in ("pids", ""):
            found.append(ROOTS[0 if controllers else 1] / path.lstrip("/"))
    return found


def write(file: Path, text: str) -> None:
    descriptor = os.open(file, os.O_WRONLY)
    try:
        os.write(descriptor, text.encode())
    finally:
        os.close(descriptor)
