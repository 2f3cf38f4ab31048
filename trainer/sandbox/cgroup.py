"""A hard limit on the number of tasks, where we may make control groups (root on a bare machine, mostly).

RLIMIT_NPROC does the same for ordinary users, but does not bind root: there a fork bomb would run until the meter gets
its turn, which among ten thousand processes takes minutes. Not covered: root without control groups (in a container,
say), so run the agent as an ordinary user there.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

ROOTS = (Path("/sys/fs/cgroup/pids"), Path("/sys/fs/cgroup"))
"""Version 1 has a tree for each controller, version 2 one for all."""
NAME = "dailytrain"
numbers = itertools.count(1)


class Group:
    def __init__(self, folder: Path) -> None:
        self._folder = folder

    @classmethod
    def make(cls, tasks: int) -> Group | None:
        """Return a group of at most so many processes and threads; None where that cannot be had."""
        for root in ROOTS:
            sweep(root)
            folder = root / f"{NAME}-{os.getpid()}-{next(numbers)}"
            try:
                folder.mkdir()
            except OSError:
                continue
            try:
                (folder / "pids.max").write_text(str(tasks))
            except OSError:
                folder.rmdir()
                continue
            return cls(folder)
        return None

    def around(self, command: Sequence[str]) -> list[str]:
        """Return the command that enters the group before it becomes this one."""
        return ["sh", "-c", 'echo $$ > "$0" && exec "$@"', str(self._folder / "cgroup.procs"), *command]

    def remove(self) -> None:
        """Once its processes are gone."""
        with suppress(OSError):
            self._folder.rmdir()


def sweep(root: Path) -> None:
    """Remove groups of starters that were killed; the kernel keeps those that still have processes."""
    for folder in root.glob(f"{NAME}-*"):
        owner = folder.name.split("-")[1]
        if not Path("/proc", owner).exists():
            with suppress(OSError):
                folder.rmdir()
