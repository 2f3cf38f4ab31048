"""The specification of a sandbox: command, mounts and limits, the same for every driver."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from trainer.errors import UserError

OutputStream = int | IO[bytes]  # an open file, its descriptor or `subprocess.DEVNULL`; never `subprocess.PIPE`


class SandboxError(UserError):
    """The sandbox could not be started."""


@dataclass(frozen=True)
class ResourceLimits:
    """Limits of all processes of a sandbox together."""

    wall_seconds: float
    memory_bytes: int  # anonymous and shared memory, and files in memory (`/tmp`, `/dev/shm`); not the page cache
    disk_bytes: int
    """Bytes in writable mounts, including deleted files that are still open. A file counts as at least 4 KiB."""
    processes: int


@dataclass(frozen=True)
class Mount:
    """A file or folder that is visible in the sandbox under the same path as outside."""

    path: Path
    writable: bool = False


@dataclass(frozen=True)
class SandboxSpec:
    """A command, what it can see and what it may use."""

    command: Sequence[str]
    environment: Mapping[str, str]
    """All variables. Only `PATH`, `HOME` and `LANG` have defaults, set by the driver; these override them."""
    mounts: Sequence[Mount]  # besides these, only the interpreter's own folders are visible
    folder: Path  # working directory of the command
    limits: ResourceLimits
    hidden: Sequence[Path] = ()
    """Folders of the system and the interpreter that are empty inside, but for mounts. For bubblewrap only."""
