"""A control group for one sandbox, if the system permits: the kernel then stops a fork bomb.

RLIMIT_NPROC does the same for an ordinary user but does not bind root; root can usually create control groups.
Source: the kernel's admin-guide/cgroup-v1/pids and admin-guide/cgroup-v2.

Not covered: root without control groups (in a container, say). The meter alone is slow against ten thousand
processes, so run the agent as an ordinary user there.
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
"""Folders of the `pids` controller: its own hierarchy (version 1), or the only one (version 2)."""
NAME = "dailytrain"
REMOVAL_SECONDS = 2.0
NUMBERS = count(1)


class ControlGroup:
    """Limits the number of tasks (processes and their threads) in it."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    @classmethod
    def create(cls, tasks: int) -> ControlGroup | None:
        """Return a new group for at most `tasks` tasks; None without permission."""
        for parent in list_parent_groups():
            remove_stale_groups(parent)
            folder = parent / f"{NAME}-{os.getpid()}-{next(NUMBERS)}"
            try:
                folder.mkdir()
            except OSError:
                continue
            group = cls(folder)
            try:
                write_control_file(folder / "pids.max", str(tasks))
            except OSError:
                group.remove()
                continue
            return group
        return None

    def wrap_command(self, command: Sequence[str]) -> list[str]:
        """Return a command that enters the group and then executes `command`."""
        return ["sh", "-c", 'echo $$ > "$0" && exec "$@"', str(self._folder / "cgroup.procs"), *command]

    def remove(self) -> None:
        """Remove the group; retry for a moment, because the kernel updates it after the last process has ended."""
        deadline = time.monotonic() + REMOVAL_SECONDS
        while self._folder.exists():
            with suppress(OSError):
                self._folder.rmdir()
                return
            if time.monotonic() > deadline:
                return
            time.sleep(0.01)


def list_parent_groups() -> list[Path]:
    """Return where a group can be created: in this process's own group, or at the root."""
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


def remove_stale_groups(parent: Path) -> None:
    """Remove the groups of killed agents; the kernel keeps those that still have processes."""
    for folder in parent.glob(f"{NAME}-*"):
        if not Path("/proc", folder.name.split("-")[1]).exists():
            with suppress(OSError):
                folder.rmdir()


def write_control_file(file: Path, text: str) -> None:
    """Write to an existing file; never create one, because a folder that is no control group has none."""
    descriptor = os.open(file, os.O_WRONLY)
    try:
        os.write(descriptor, text.encode())
    finally:
        os.close(descriptor)
