"""What is to be run, and what it may use: the same for every driver."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Protocol

from trainer.sandbox.process import Process

Stream = int | IO[bytes]
"""What `subprocess.Popen` takes for an output: an open file, its number or `subprocess.DEVNULL`; no pipe of its own."""


class SandboxError(ValueError):
    """The sandbox could not be started."""


@dataclass(frozen=True)
class Limits:
    """What all processes of a box may use together."""

    wall_seconds: float
    memory_bytes: int
    """Anonymous and shared memory, and files in memory (`/tmp`, `/dev/shm`); not the page cache."""
    disk_bytes: int
    """In the writable mounts, deleted files that are still open included. A file counts at least 4 KiB."""
    processes: int


@dataclass(frozen=True)
class Mount:
    """A file or folder that is visible inside, under the same path as outside."""

    path: Path
    writable: bool = False


@dataclass(frozen=True)
class Box:
    command: Sequence[str]
    environment: Mapping[str, str]
    """All of it: nothing is inherited but `PATH`, `HOME` and `LANG`, which the driver sets and this may override."""
    mounts: Sequence[Mount]
    """Beside these and the interpreter's own folders nothing of the machine can be seen."""
    folder: Path
    """Where the command starts."""
    limits: Limits
    pass_fds: Sequence[int] = field(default=())
    """Open files that the command inherits under the same numbers. Not with docker."""


class Driver(Protocol):
    """One way of running a box. Constructed without arguments."""

    name: str

    def why_not(self) -> str | None:
        """Return None if this driver works on this machine (found out by running something in it), else a sentence."""

    def start(self, box: Box, stdout: Stream, stderr: Stream) -> Process:
        """Start the box's command; standard input is empty. `SandboxError` if it cannot be started."""
