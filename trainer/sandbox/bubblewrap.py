"""The bubblewrap driver: Linux namespaces, no daemon, no root needed.

Inside there is no network; a read-only root that holds the system's programs and libraries, the Python that runs
this and what is mounted; a private /tmp and /dev/shm of limited size; no other process; no way to gain rights.
The box dies with the process that started it.

Not covered: bugs of the kernel (there is no seccomp filter); the processor time it takes from others; what is
readable under /usr, which every user of the machine can read anyway.
"""

from __future__ import annotations

import json
import os
import resource
import select
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from trainer.sandbox.box import Box, Limits, Mount, SandboxError, Stream
from trainer.sandbox.cgroup import ControlGroup
from trainer.sandbox.graphics import devices
from trainer.sandbox.meter import PROC, THREADS, Meter, parent, processes
from trainer.sandbox.process import Process, first_line

NOBODY = "65534"
"""User and group inside. Outside the files it writes are the caller's."""
SYSTEM = ("/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32", "/etc/ld.so.cache", "/etc/alternatives")
PROCESSOR = "/sys/devices/system/cpu"
"""PyTorch reads from it how many processors there are."""
OPEN_FILES = 4096


class Bubblewrap:
    name = "bubblewrap"

    def why_not(self) -> str | None:
        for program in ("bwrap", "prlimit"):
            if shutil.which(program) is None:
                return f"The program {program} is not installed (packages: bubblewrap, util-linux)."
        limits = Limits(wall_seconds=10, memory_bytes=1 << 30, disk_bytes=1 << 30, processes=8)
        box = Box([sys.executable, "-I", "-S", "-c", ""], {}, [], Path("/"), limits)
        complaint = first_line(subprocess.run, [*arguments(box, None), *command(box)])
        return None if complaint is None else f"Bubblewrap does not work here: {complaint}"

    def start(self, box: Box, stdout: Stream, stderr: Stream) -> Process:
        for mount in box.mounts:
            if not mount.path.exists():
                raise SandboxError(f"{mount.path} cannot be mounted: there is no such file or folder.")
        return BubblewrapProcess(box, stdout, stderr).begin()


class BubblewrapProcess(Process):
    def __init__(self, box: Box, stdout: Stream, stderr: Stream) -> None:
        super().__init__(Meter(box))
        self._box = box
        self._streams = stdout, stderr
        self._first: int | None = None
        """The first process inside: when it dies all others are killed, and it is gone only after them."""
        self._first_handle: int | None = None
        self._handling = threading.Lock()
        self._group: ControlGroup | None = None

    def _launch(self) -> subprocess.Popen[bytes]:
        self._group = ControlGroup.make(tasks(self._box.limits))
        reading, writing = os.pipe()
        words = [*arguments(self._box, writing), *command(self._box)]
        try:
            popen = subprocess.Popen(
                words if self._group is None else self._group.around(words),
                stdin=subprocess.DEVNULL,
                stdout=self._streams[0],
                stderr=self._streams[1],
                pass_fds=[*self._box.pass_fds, writing],
                start_new_session=True,
            )
        except OSError as error:
            os.close(reading)
            self._leave_group()
            raise SandboxError(f"Bubblewrap could not be started: {error}.") from error
        finally:
            os.close(writing)
        with os.fdopen(reading, "rb") as pipe:
            self._remember_first(pipe.read())
        return popen

    def _remember_first(self, told: bytes) -> None:
        with suppress(ValueError, KeyError, ProcessLookupError):
            self._first = int(json.loads(told)["child-pid"])
            self._first_handle = os.pidfd_open(self._first)

    def stop(self) -> None:
        for pid in self._commands():
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGTERM)

    def _commands(self) -> list[int]:
        """The command itself: the child of the first process inside that is not adopted, which is the oldest."""
        if self._first is None or self.poll() is not None:
            return []
        children = [pid for pid in processes() if parent(pid) == self._first]
        return sorted(children, key=started)[:1]

    def _destroy(self) -> None:
        with self._handling, suppress(ProcessLookupError):
            if self._first_handle is not None:
                signal.pidfd_send_signal(self._first_handle, signal.SIGKILL)
        assert self._popen is not None
        with suppress(ProcessLookupError):
            self._popen.kill()

    def _gone(self) -> None:
        if self._first_handle is not None:
            ended = select.poll()
            ended.register(self._first_handle, select.POLLIN)
            ended.poll()
            with self._handling:
                os.close(self._first_handle)
                self._first_handle = None
        self._leave_group()

    def _leave_group(self) -> None:
        if self._group is not None:
            self._group.remove()


def started(pid: int) -> int:
    """Clock ticks from boot to the start of a process."""
    try:
        text = (PROC / str(pid) / "stat").read_bytes()
    except OSError:
        return sys.maxsize
    return int(text[text.rindex(b")") + 1 :].split()[19])


def arguments(box: Box, info: int | None) -> list[str]:
    """Return bubblewrap's own command line, up to the command inside. `info`: where it tells the first process's id."""
    room = str(max(box.limits.memory_bytes // 8, 1 << 20))
    told = [] if info is None else ["--info-fd", str(info)]
    return [
        *(["choom", "-n", "500", "--"] if shutil.which("choom") else []),  # when memory runs out, this goes first
        *["bwrap", *told, "--unshare-all", "--unshare-user", "--disable-userns", "--uid", NOBODY, "--gid", NOBODY],
        *["--hostname", "box", "--die-with-parent", "--new-session", "--cap-drop", "ALL", "--clearenv"],
        *(word for name, value in environment(box).items() for word in ("--setenv", name, value)),
        *(word for path in SYSTEM for word in system(Path(path))),
        *["--proc", "/proc", "--dev", "/dev", "--size", room, "--tmpfs", "/dev/shm", "--size", room, "--tmpfs", "/tmp"],  # noqa: S108
        *["--ro-bind-try", PROCESSOR, PROCESSOR],
        *(word for path in devices(box.environment) for word in ("--dev-bind", path, path)),
        *(word for path in interpreter() for word in ("--ro-bind", path, path)),
        *(word for mount in box.mounts for word in bind(mount)),
        # What bubblewrap made for itself is memory without a limit: nobody writes there.
        *["--remount-ro", "/dev", "--remount-ro", "/", "--chdir", str(box.folder), "--"],
    ]


def command(box: Box) -> list[str]:
    """Return the command as it runs inside, under the limits that each process has for itself."""
    # A little more than the quota, so that the meter is the first to notice and says its sentence.
    largest = box.limits.disk_bytes * 5 // 4 + (64 << 20)
    limits = {
        "core": 0,
        "fsize": within(resource.RLIMIT_FSIZE, largest),
        "nofile": within(resource.RLIMIT_NOFILE, OPEN_FILES),
        # Counts threads, per user (here: user namespace); does not bind root, whom the control group does.
        "nproc": within(resource.RLIMIT_NPROC, tasks(box.limits)),
    }
    # A little behind others, so that the machine and above all the meter stay awake.
    return ["nice", "-n", "5", "prlimit", *(f"--{name}={value}" for name, value in limits.items()), "--", *box.command]


def tasks(limits: Limits) -> int:
    """Return how many processes and threads the kernel allows: more than the meter does, which has a sentence."""
    return limits.processes * THREADS * 5 // 4 + 64


def within(kind: int, wanted: int) -> int:
    """Return `wanted`, or the caller's own hard limit if that is less: nobody may raise it."""
    hard = resource.getrlimit(kind)[1]
    return wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)


def environment(box: Box) -> dict[str, str]:
    home = "/tmp"  # noqa: S108  (the box's own)
    return {"PATH": "/usr/bin:/bin", "HOME": home, "USER": "nobody", "LANG": "C.UTF-8", **box.environment}


def system(path: Path) -> Iterator[str]:
    """Yield the words that show a part of the system; where /lib is a link to /usr/lib it is one inside too."""
    if path.is_symlink():
        yield from ("--symlink", str(path.readlink()), str(path))
    elif path.exists():
        yield from ("--ro-bind", str(path), str(path))


def interpreter() -> list[str]:
    """Return the folders of this Python, as far as they are not in /usr: the environment's and the one it came from."""
    folders = {sys.prefix, sys.exec_prefix, sys.base_prefix, sys.base_exec_prefix}
    return sorted(folder for folder in folders if not Path(folder).is_relative_to("/usr"))


def bind(mount: Mount) -> tuple[str, str, str]:
    return "--bind" if mount.writable else "--ro-bind", str(mount.path), str(mount.path)
