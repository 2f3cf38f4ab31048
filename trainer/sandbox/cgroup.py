"""A control group for one box, where this system lets us make one: the kernel itself then stops a fork bomb.

RLIMIT_NPROC does the same for an ordinary user and does not bind root; root may make control groups, mostly. Source:
the kernel's admin-guide/cgroup-v1/pids and admin-guide/cgroup-v2.

Not covered: root without control groups (in a container, say). The meter alone is slow against ten thousand
processes, so the agent should be an ordinary user there.
"""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from contextlib import suppress
from itertools import count
from pathlib import Path

MEMBERSHIP = Path("/proc/self/cgroup")
ROOTS = (Path("/sys/fs/cgroup/pids"), Path("/sys/fs/cgroup"))
"""Where the `pids` controller is: its own hierarchy (version 1), or the only one (version 2)."""
NAME = "dailytrain"
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
            sweep(parent)
            folder = parent / f"{NAME}-{os.getpid()}-{next(NUMBERS)}"
            try:
                folder.mkdir()
            except OSError:
                continue
            group = cls(folder)
            try:
                write(folder / "pids.max", str(tasks))
            except OSError:
                group.remove()
                continue
            return group
        return None

    def around(self, command: Sequence[str]) -> list[str]:
        """Return the command that enters the group before it becomes this one."""
        return ["sh", "-c", 'echo $$ > "$0" && exec "$@"', str(self._folder / "cgroup.procs"), *command]

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
    """Return where a group might be made: in the one that this process is in, or beside all others."""
    try:
        lines = MEMBERSHIP.read_text().splitlines()
    except OSError:
        return []
    found = []
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if controllers in ("pids", ""):
            root = ROOTS[0 if controllers else 1]
            found += [root / path.lstrip("/"), root]
    return list(dict.fromkeys(found))


def sweep(parent: Path) -> None:
    """Remove groups of starters that were killed; the kernel keeps those that still have processes."""
    for folder in parent.glob(f"{NAME}-*"):
        if not Path("/proc", folder.name.split("-")[1]).exists():
            with suppress(OSError):
                folder.rmdir()


def write(file: Path, text: str) -> None:
    """Without making the file: a folder that is no control group has none."""
    descriptor = os.open(file, os.O_WRONLY)
    try:
        os.write(descriptor, text.encode())
    finally:
        os.close(descriptor)
