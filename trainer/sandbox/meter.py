"""What a tree of processes uses, read from /proc, against its limits.

Needed beside prlimit because no rlimit counts a whole tree or a folder, and to put into words what was too much.

Not covered: an open file that is on its way through a socket (SCM_RIGHTS) and open nowhere else; what is used between
two looks (a tenth of a second). Without /proc (macOS) only wall time and disk are metered.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator, Sequence
from contextlib import suppress
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from trainer.sandbox.box import Box

FILE_BYTES = 4096
"""The least a file or folder counts: its inode and its name take room too."""
FILES = 50_000
THREADS = 16
"""Per allowed process, all of them together."""
OURS = 2
"""Programs of the sandbox itself in the tree: one outside, one as the first process inside."""
PROC = Path("/proc")


class Meter:
    def __init__(self, box: Box, engine: bool = False) -> None:
        """`engine`: processes and memory are somebody else's to limit (a container engine's)."""
        self.wall_seconds = box.limits.wall_seconds
        self.memory_bytes = box.limits.memory_bytes
        self.disk_bytes = box.limits.disk_bytes
        self.processes = box.limits.processes
        self.writable = [mount.path.absolute() for mount in box.mounts if mount.writable]
        self.follows_processes = not engine and PROC.joinpath("self/stat").exists()
        self._memory_device = memory_device()
        self._devices = {folder.stat().st_dev for folder in self.writable if folder.exists()}
        self._hidden: set[int] = set()
        self._tree = Tree()
        self._looks = 0

    def exceeded(self, root: int, seconds: float) -> str | None:
        """Return the sentence about the first limit that the tree under process `root` is beyond, or None."""
        self._looks += 1
        if seconds > self.wall_seconds:
            return f"It ran longer than {self.wall_seconds:.0f} seconds."
        members = self._tree.members(root, enough=self.processes + 8) if self.follows_processes else []
        thorough = self._looks % 3 == 0
        return (
            self._processes_exceeded(members)
            or self._memory_exceeded(members, thorough)
            or (self._hides(members, root) or self.disk_exceeded(members) if thorough else None)
        )

    def _hides(self, members: Sequence[int], root: int) -> str | None:
        """A process can forbid its own user to look at its open files (PR_SET_DUMPABLE). Honest training never does.

        Twice in a row, because a process that is just being started looks like that for a moment.
        """
        hidden = {member for member in members if not may_look(member) and root not in (member, parent(member))}
        again, self._hidden = hidden & self._hidden, hidden
        return "It hid a process from the meter." if again else None

    def disk_exceeded(self, members: Sequence[int] = ()) -> str | None:
        """Return the sentence if the writable folders, and the deleted files that `members` hold, are too much."""
        try:
            # One inode counts once, under however many names.
            found = {
                (entry.st_dev, entry.st_ino): max(entry.st_blocks * 512, FILE_BYTES)
                for folder in self.writable
                for entry in islice(walk(folder), FILES + 1)
            }
        except PermissionError:
            return "It hid a folder from the meter."
        if len(found) > FILES:
            return f"It made more than {FILES:,} files."
        held = {inode: size for inode, size in nameless(members).items() if inode[0] in self._devices}
        for member in members:
            held |= dict(mapped(member, self.writable))
        if sum((held | found).values()) > self.disk_bytes:
            return f"It used more than {in_words(self.disk_bytes)} of disk."
        return None

    def _processes_exceeded(self, members: Sequence[int]) -> str | None:
        if len(members) > self.processes + OURS:
            return f"It had more than {self.processes} processes at once."
        if sum(threads(member) for member in members) > self.processes * THREADS:
            return f"It had more than {self.processes * THREADS} threads at once."
        return None

    def _memory_exceeded(self, members: Sequence[int], thorough: bool) -> str | None:
        """The cheap sum counts shared pages once per process; only when that is too much the exact one is taken.

        Memory that is a file without a folder (memfd_create) may be resident too: the larger of both counts, so that
        somebody who uses both gets at most twice the limit.
        """
        floating = 0
        if thorough:
            floating = sum(size for inode, size in nameless(members).items() if inode[0] == self._memory_device)
        for look in (resident, proportional):
            private, shared = look(members)
            if private + max(shared, floating) <= self.memory_bytes:
                return None
        return f"It used more than {in_words(self.memory_bytes)} of memory."


class Tree:
    """The processes under one, remembered between looks: only new process ids are read."""

    def __init__(self) -> None:
        self._foreign: set[int] = set()
        self._own: set[int] = set()
        self._looks = 0

    def members(self, root: int, enough: int) -> list[int]:
        """Return `root` and the process ids under it; stop looking when there are `enough`."""
        self._looks += 1
        if self._looks % 100 == 0:
            self._foreign.clear()  # process ids come round again
        now = set(processes())
        self._foreign &= now
        self._own = (self._own & now) | {root}
        parents = {pid: parent(pid) for pid in sorted(now - self._foreign - self._own)}
        grown = True
        while grown and len(self._own) < enough:
            new = {pid for pid, above in parents.items() if above in self._own and pid not in self._own}
            self._own |= new
            grown = bool(new)
        if len(self._own) < enough:
            self._foreign |= parents.keys() - self._own
        return sorted(self._own)


def processes() -> list[int]:
    """Return the ids of all processes of the machine."""
    with os.scandir(PROC) as entries:
        return [int(entry.name) for entry in entries if entry.name.isdigit()]


def parent(pid: int) -> int:
    """Return the parent's process id; 0 if the process is gone."""
    try:
        text = (PROC / str(pid) / "stat").read_bytes()
    except OSError:
        return 0
    return int(text[text.rindex(b")") + 1 :].split()[1])  # the name before it may hold anything


def read(pid: int, file: str) -> dict[bytes, int]:
    """Return the numbers of /proc/<pid>/<file>, whose lines are `name: number [kB]`; nothing if the process is gone."""
    try:
        lines = (PROC / str(pid) / file).read_bytes().splitlines()
    except OSError:
        return {}
    words = [line.split() for line in lines]
    return {word[0]: int(word[1]) for word in words if len(word) > 1 and word[1].isdigit()}


def threads(pid: int) -> int:
    return read(pid, "status").get(b"Threads:", 0)


def resident(members: Sequence[int]) -> tuple[int, int]:
    """Bytes of private and of shared memory in RAM; a page counts for every process that has it."""
    return sums(members, "status", b"RssAnon:", b"RssShmem:")


def proportional(members: Sequence[int]) -> tuple[int, int]:
    """As `resident`, each page divided among the processes that have it."""
    return sums(members, "smaps_rollup", b"Pss_Anon:", b"Pss_Shmem:")


def sums(members: Sequence[int], file: str, private: bytes, shared: bytes) -> tuple[int, int]:
    kibibytes = [read(member, file) for member in members]
    return 1024 * sum(one.get(private, 0) for one in kibibytes), 1024 * sum(one.get(shared, 0) for one in kibibytes)


def memory_device() -> int:
    """Return the device number under which memory appears that is a file without a folder."""
    if not hasattr(os, "memfd_create"):
        return -1
    number = os.memfd_create("probe")
    try:
        return os.fstat(number).st_dev
    finally:
        os.close(number)


def nameless(members: Sequence[int]) -> dict[tuple[int, int], int]:
    """Return the size in bytes of each deleted file that the processes have open, by inode."""
    return {
        (entry.st_dev, entry.st_ino): entry.st_blocks * 512
        for member in members
        for entry in opened(member)
        if stat.S_ISREG(entry.st_mode) and entry.st_nlink == 0
    }


def may_look(pid: int) -> bool:
    """Return False if a process is there and keeps its open files from us."""
    try:
        os.scandir(PROC / str(pid) / "fd").close()
    except PermissionError:
        return False
    except OSError:
        return True
    return True


def opened(pid: int) -> Iterator[os.stat_result]:
    """Yield what a process has open; nothing if it is gone or `may_look` says no."""
    try:
        with os.scandir(PROC / str(pid) / "fd") as entries:
            for entry in entries:
                with suppress(OSError):
                    yield entry.stat()
    except OSError:
        return


def mapped(pid: int, folders: Sequence[Path]) -> Iterator[tuple[tuple[int, int], int]]:
    """Yield inode and length of the mapping for each deleted file of the folders that a process has mapped."""
    try:
        text = (PROC / str(pid) / "maps").read_bytes()
    except OSError:
        return
    for line in text.splitlines() if b" (deleted)" in text else ():
        words = line.split(maxsplit=5)
        if len(words) == 6 and words[5].startswith(tuple(os.fsencode(folder) for folder in folders)):
            begin, end = (int(part, 16) for part in words[0].split(b"-"))
            major, minor = (int(part, 16) for part in words[3].split(b":"))
            if words[5].endswith(b" (deleted)"):
                yield (os.makedev(major, minor), int(words[4])), end - begin


def walk(folder: Path) -> Iterator[os.stat_result]:
    """Yield what lies in a folder, without following links; what vanishes meanwhile is left out.

    Raise `PermissionError` for a folder that we may not read: its owner inside may have taken that right away.
    """
    waiting = [str(folder)]
    while waiting:
        try:
            with os.scandir(waiting.pop()) as entries:
                for entry in entries:
                    with suppress(FileNotFoundError):
                        yield entry.stat(follow_symlinks=False)
                    if entry.is_dir(follow_symlinks=False):
                        waiting.append(entry.path)
        except (FileNotFoundError, NotADirectoryError):
            continue


def in_words(size: int) -> str:
    """`2.0 GB`, `512.0 MB`: decimal units."""
    return f"{size / 1e9:.1f} GB" if size >= 1e9 else f"{size / 1e6:.1f} MB"
