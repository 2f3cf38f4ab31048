"""Measure what a tree of processes uses and compare it with its limits.

Needed besides prlimit because no rlimit counts a whole tree or a folder, and to report which limit was exceeded.
Memory and open files come from /proc, because psutil separates neither anonymous and shared memory nor deleted files.

Not covered: an open file in transit through a socket (SCM_RIGHTS) that is open nowhere else; what is used between two
measurements (a tenth of a second). Without /proc (macOS) only wall time and disk are metered.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator, Sequence
from contextlib import suppress
from itertools import islice
from pathlib import Path

import psutil

from trainer.sandbox.spec import SandboxSpec

FILE_BYTES = 4096  # minimum size that a file or folder counts: its inode and name use space, too
MAX_FILES = 50_000
THREADS_PER_PROCESS = 16  # allowed on average: only the total over all processes is limited
SANDBOX_PROCESSES = 2  # programs of the sandbox itself in the tree: one outside, one as the first process inside
PROC = Path("/proc")
MEMORY_FIELDS = (("status", b"RssAnon:", b"RssShmem:"), ("smaps_rollup", b"Pss_Anon:", b"Pss_Shmem:"))
"""File of a process, private and shared memory in it. The first counts a shared page once per process that maps it; the
second divides it among them, which is exact and slow."""


class ResourceMeter:
    def __init__(self, spec: SandboxSpec, follow_processes: bool = True) -> None:
        """`follow_processes`: False if a container engine limits processes and memory."""
        self._limits = spec.limits
        self.wall_seconds = spec.limits.wall_seconds
        self._writable = [mount.path.absolute() for mount in spec.mounts if mount.writable]
        self._follows_processes = follow_processes and PROC.joinpath("self/stat").exists()
        self._memfd_device = find_memfd_device()
        self._devices = {folder.stat().st_dev for folder in self._writable if folder.exists()}
        self._hidden: set[int] = set()
        self._tree = ProcessTree()
        self._checks = 0

    def check(self, root: int, seconds: float) -> str | None:
        """Return a sentence about the first limit that the tree under process `root` exceeds; None if it exceeds none.

        `seconds`: wall time since its start. Every third call also measures disk and memory in files.
        """
        self._checks += 1
        if self.is_out_of_time(seconds):
            return f"It ran longer than {self.wall_seconds:.0f} seconds."
        members = self._tree.find_members(root, self._limits.processes + 8) if self._follows_processes else []
        is_thorough = self._checks % 3 == 0
        return (
            self._check_processes(members)
            or self._check_memory(members, is_thorough)
            or (self._check_hiding(members, root) or self.check_disk(members) if is_thorough else None)
        )

    def is_out_of_time(self, seconds: float) -> bool:
        return seconds > self.wall_seconds

    def _check_hiding(self, members: Sequence[int], root: int) -> str | None:
        """Detect processes that hide their open files from their own user (PR_SET_DUMPABLE). Training never does.

        Only a process that is hidden in two consecutive checks counts: a starting process looks hidden for a moment.
        """
        suspects = {member for member in members if not has_readable_files(member)}
        hidden = {member for member in suspects if root not in (member, get_parent_id(member))}
        still_hidden, self._hidden = hidden & self._hidden, hidden
        return "It hid a process from the meter." if still_hidden else None

    def check_disk(self, members: Sequence[int] = ()) -> str | None:
        """Return a sentence if the writable folders plus the deleted files that `members` hold exceed the limit."""
        try:
            # One inode counts once, however many names it has.
            found = {
                (entry.st_dev, entry.st_ino): max(entry.st_blocks * 512, FILE_BYTES)
                for folder in self._writable
                for entry in islice(walk_folder(folder), MAX_FILES + 1)
            }
        except PermissionError:
            return "It hid a folder from the meter."
        if len(found) > MAX_FILES:
            return f"It created more than {MAX_FILES:,} files."
        deleted = find_deleted_open_files(members)
        held = {inode: size for inode, size in deleted.items() if inode[0] in self._devices}
        for member in members:
            held |= dict(iterate_deleted_mappings(member, self._writable))
        if sum((held | found).values()) > self._limits.disk_bytes:
            return f"It used more than {format_size(self._limits.disk_bytes)} of disk."
        return None

    def _check_processes(self, members: Sequence[int]) -> str | None:
        processes = self._limits.processes
        if len(members) > processes + SANDBOX_PROCESSES:
            return f"It had more than {processes} processes at once."
        if sum(count_threads(member) for member in members) > processes * THREADS_PER_PROCESS:
            return f"It had more than {processes * THREADS_PER_PROCESS} threads at once."
        return None

    def _check_memory(self, members: Sequence[int], is_thorough: bool) -> str | None:
        """Check the fast sum first; if it is too large, the exact one.

        Files without a folder (memfd_create) may be in RAM and so in the shared sum too. The larger of both counts,
        so a job that uses both gets at most twice the limit.
        """
        memfd_bytes = 0
        if is_thorough:
            deleted = find_deleted_open_files(members)
            memfd_bytes = sum(size for inode, size in deleted.items() if inode[0] == self._memfd_device)
        for names in MEMORY_FIELDS:
            private, shared = sum_memory(members, *names)
            if private + max(shared, memfd_bytes) <= self._limits.memory_bytes:
                return None
        return f"It used more than {format_size(self._limits.memory_bytes)} of memory."


class ProcessTree:
    """The processes under one, remembered between calls: orphans stay members, and only new processes are looked up."""

    def __init__(self) -> None:
        self._foreign: set[int] = set()
        self._members: set[int] = set()
        self._calls = 0

    def find_members(self, root: int, max_members: int) -> list[int]:
        """Return `root` and the process ids under it; stop at about `max_members`."""
        self._calls += 1
        if self._calls % 100 == 0:
            self._foreign.clear()  # the kernel reuses process ids
        now = set(psutil.pids())
        self._foreign &= now
        self._members = (self._members & now) | {root}
        parents = {pid: get_parent_id(pid) for pid in sorted(now - self._foreign - self._members)}
        has_grown = True
        while has_grown and len(self._members) < max_members:
            new = {pid for pid, parent in parents.items() if parent in self._members and pid not in self._members}
            self._members |= new
            has_grown = bool(new)
        if len(self._members) < max_members:
            self._foreign |= parents.keys() - self._members
        return sorted(self._members)


def get_parent_id(pid: int) -> int:
    """Return the parent's process id; 0 if the process is gone."""
    try:
        return psutil.Process(pid).ppid()
    except psutil.Error:
        return 0


def read_proc_numbers(pid: int, file: str) -> dict[bytes, int]:
    """Return the numbers in /proc/<pid>/<file>, whose lines are `name: number [kB]`; empty if the process is gone."""
    try:
        lines = (PROC / str(pid) / file).read_bytes().splitlines()
    except OSError:
        return {}
    rows = [line.split() for line in lines]
    return {row[0]: int(row[1]) for row in rows if len(row) > 1 and row[1].isdigit()}


def count_threads(pid: int) -> int:
    return read_proc_numbers(pid, "status").get(b"Threads:", 0)


def sum_memory(members: Sequence[int], file: str, private: bytes, shared: bytes) -> tuple[int, int]:
    """Return the bytes of private and of shared memory in RAM, from one of `MEMORY_FIELDS`."""
    kibibytes = [read_proc_numbers(member, file) for member in members]
    return 1024 * sum(m.get(private, 0) for m in kibibytes), 1024 * sum(m.get(shared, 0) for m in kibibytes)


def find_memfd_device() -> int:
    """Return the device number of files from memfd_create; -1 where it does not exist."""
    if not hasattr(os, "memfd_create"):
        return -1
    number = os.memfd_create("probe")
    try:
        return os.fstat(number).st_dev
    finally:
        os.close(number)


def find_deleted_open_files(members: Sequence[int]) -> dict[tuple[int, int], int]:
    """Return the size in bytes of each deleted file that the processes have open, by inode."""
    return {
        (entry.st_dev, entry.st_ino): entry.st_blocks * 512
        for member in members
        for entry in iterate_open_files(member)
        if stat.S_ISREG(entry.st_mode) and entry.st_nlink == 0
    }


def has_readable_files(pid: int) -> bool:
    """Return False if the process exists and its open files cannot be read."""
    try:
        os.scandir(PROC / str(pid) / "fd").close()
    except PermissionError:
        return False
    except OSError:
        return True
    return True


def iterate_open_files(pid: int) -> Iterator[os.stat_result]:
    """Yield the open files of a process; nothing if it is gone or not readable."""
    try:
        with os.scandir(PROC / str(pid) / "fd") as entries:
            for entry in entries:
                with suppress(OSError):
                    yield entry.stat()
    except OSError:
        return


def iterate_deleted_mappings(pid: int, folders: Sequence[Path]) -> Iterator[tuple[tuple[int, int], int]]:
    """Yield inode and mapped length of each deleted file in `folders` that a process has mapped."""
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


def walk_folder(folder: Path) -> Iterator[os.stat_result]:
    """Yield the entries of a folder and its subfolders without following links; skip what vanishes meanwhile.

    Raise `PermissionError` for an unreadable folder: a job can revoke that permission.
    """
    pending = [str(folder)]
    while pending:
        try:
            with os.scandir(pending.pop()) as entries:
                for entry in entries:
                    with suppress(FileNotFoundError):
                        yield entry.stat(follow_symlinks=False)
                    if entry.is_dir(follow_symlinks=False):
                        pending.append(entry.path)
        except (FileNotFoundError, NotADirectoryError):
            continue


def format_size(size: int) -> str:
    """Format bytes in decimal units: `2.0 GB`, `512.0 MB`."""
    return f"{size / 1e9:.1f} GB" if size >= 1e9 else f"{size / 1e6:.1f} MB"
