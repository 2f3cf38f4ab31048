"""The bubblewrap driver: Linux namespaces, no daemon, no root needed.

A sandbox has no network; a read-only root with the system's programs and libraries, this Python and the mounts; a
private /tmp and /dev/shm of limited size; its own process namespace; no way to gain privileges. It dies with the
process that started it.

Not covered: kernel bugs (there is no seccomp filter); processor time taken from others; what is readable under /usr,
which every user of the machine can read anyway.
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
from functools import cache
from pathlib import Path

import psutil

from trainer.sandbox.cgroup import ControlGroup
from trainer.sandbox.gpu_devices import list_gpu_devices
from trainer.sandbox.meter import THREADS_PER_PROCESS
from trainer.sandbox.process import SandboxProcess, find_command_error
from trainer.sandbox.spec import Mount, OutputStream, ResourceLimits, SandboxError, SandboxSpec

INNER_USER_ID = "65534"  # User and group id inside. Outside, the files it writes belong to the caller.
SYSTEM = ("/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32", "/etc/ld.so.cache", "/etc/alternatives")
KERNEL_SETTINGS = ("/proc/sys", "/proc/sysrq-trigger", "/proc/irq", "/proc/bus", "/proc/fs", "/proc/scsi", "/proc/mtrr")
"""Read-only inside. A node that runs as root owns them even without capabilities: core_pattern names a program that the
kernel starts outside."""
PREFIX_PARTS = ("bin", "include", "lib", "lib64", "pyvenv.cfg", "share/jupyter")
"""What Python uses of a prefix that is a home folder."""
PROCESSOR = "/sys/devices/system/cpu"  # PyTorch reads the number of processors from it
OPEN_FILES = 4096


class BubblewrapDriver:
    name = "bubblewrap"

    def find_problem(self) -> str | None:
        for program in ("bwrap", "prlimit"):
            if shutil.which(program) is None:
                return f"The program {program} is not installed (packages: bubblewrap, util-linux)."
        limits = ResourceLimits(wall_seconds=10, memory_bytes=1 << 30, disk_bytes=1 << 30, processes=8)
        spec = SandboxSpec([sys.executable, "-I", "-S", "-c", ""], {}, [], Path("/"), limits)
        problem = find_command_error([*build_bwrap_arguments(spec, None), *build_inner_command(spec)])
        return None if problem is None else f"Bubblewrap does not work here: {problem}"

    def start(self, spec: SandboxSpec, stdout: OutputStream, stderr: OutputStream) -> SandboxProcess:
        for mount in spec.mounts:
            if not mount.path.exists():
                raise SandboxError(f"{mount.path} cannot be mounted: there is no such file or folder.")
        return BubblewrapProcess(spec, stdout, stderr).start()


class BubblewrapProcess(SandboxProcess):
    def __init__(self, spec: SandboxSpec, stdout: OutputStream, stderr: OutputStream) -> None:
        super().__init__(spec, stdout, stderr)
        self._init: int | None = None
        """The first process inside. When it dies the kernel kills all others; it disappears only after them."""
        self._init_pidfd: int | None = None
        self._pidfd_lock = threading.Lock()
        self._group: ControlGroup | None = None

    def _launch(self) -> subprocess.Popen[bytes]:
        self._group = ControlGroup.create(max_tasks(self._spec.limits))
        reading, writing = os.pipe()
        words = [*build_bwrap_arguments(self._spec, writing), *build_inner_command(self._spec)]
        command = words if self._group is None else self._group.wrap_command(words)
        try:
            popen = self._spawn(command, pass_fds=[writing])
        except SandboxError:
            os.close(reading)
            self._remove_group()
            raise
        finally:
            os.close(writing)
        try:
            with os.fdopen(reading, "rb") as pipe:
                self._open_init(pipe.read())
        except OSError as error:  # such as too many open files: nothing may run that cannot be ended
            if self._init is not None:  # it may not be tied to its parent's life yet
                with suppress(ProcessLookupError):
                    os.kill(self._init, signal.SIGKILL)
            popen.kill()
            popen.wait()
            self._remove_group()
            raise SandboxError(f"The sandbox's first process cannot be watched: {error.strerror}.") from error
        return popen

    def _open_init(self, info: bytes) -> None:
        """Read the first process's id from what bubblewrap writes to `--info-fd`."""
        with suppress(ValueError, KeyError, ProcessLookupError):
            self._init = int(json.loads(info)["child-pid"])
            self._init_pidfd = os.pidfd_open(self._init)

    def terminate(self) -> None:
        """Signal the command: the oldest child of the first process inside. Younger ones are adopted orphans."""
        if self._init is None or self.poll() is not None:
            return
        with suppress(psutil.Error):
            children = psutil.Process(self._init).children()
            for process in sorted(children, key=lambda child: child.create_time())[:1]:
                process.terminate()

    def _kill_all(self) -> None:
        with self._pidfd_lock, suppress(ProcessLookupError):
            if self._init_pidfd is not None:
                signal.pidfd_send_signal(self._init_pidfd, signal.SIGKILL)
        assert self._popen is not None
        with suppress(ProcessLookupError):
            self._popen.kill()

    def _wait_until_gone(self) -> None:
        if self._init_pidfd is not None:
            ended = select.poll()
            ended.register(self._init_pidfd, select.POLLIN)
            ended.poll()
            with self._pidfd_lock:
                os.close(self._init_pidfd)
                self._init_pidfd = None
        self._remove_group()

    def _remove_group(self) -> None:
        if self._group is not None:
            self._group.remove()


def build_bwrap_arguments(spec: SandboxSpec, info: int | None) -> list[str]:
    """Return bubblewrap's command line up to the inner command.

    `info`: file descriptor to which it writes the id of the first process inside.
    """
    size = str(max(spec.limits.memory_bytes // 8, 1 << 20))
    info_words = [] if info is None else ["--info-fd", str(info)]
    return [
        *(["choom", "-n", "500", "--"] if shutil.which("choom") else []),  # killed first when memory runs out
        *[
            "bwrap",
            *info_words,
            "--unshare-all",
            "--unshare-user",
            "--disable-userns",
            "--uid",
            INNER_USER_ID,
            "--gid",
            INNER_USER_ID,
        ],
        *["--hostname", "box", "--die-with-parent", "--new-session", "--cap-drop", "ALL", "--clearenv"],
        *(word for name, value in build_environment(spec).items() for word in ("--setenv", name, value)),
        *(word for path in SYSTEM for word in bind_system_folder(Path(path))),
        *["--proc", "/proc", "--dev", "/dev", "--size", size, "--tmpfs", "/dev/shm", "--size", size, "--tmpfs", "/tmp"],  # noqa: S108
        *["--ro-bind-try", PROCESSOR, PROCESSOR],
        *(word for path in KERNEL_SETTINGS for word in ("--ro-bind-try", path, path)),
        *(word for path in list_gpu_devices(spec.environment) for word in ("--dev-bind", path, path)),
        *(word for path in list_interpreter_paths() for word in ("--ro-bind", path, path)),
        *(word for path in spec.hidden for word in ("--tmpfs", str(path))),
        *(word for mount in spec.mounts for word in bind_mount(mount)),
        # What bubblewrap creates for itself is memory without a limit, so it becomes read-only.
        *(word for path in spec.hidden for word in ("--remount-ro", str(path))),
        *["--remount-ro", "/dev", "--remount-ro", "/", "--chdir", str(spec.folder), "--"],
    ]


def build_inner_command(spec: SandboxSpec) -> list[str]:
    """Return the command that runs inside, under the limits of a single process."""
    # A little above the quota, so that the meter notices first and reports the reason.
    largest = spec.limits.disk_bytes * 5 // 4 + (64 << 20)
    limits = {
        "core": 0,
        "fsize": clamp_rlimit(resource.RLIMIT_FSIZE, largest),
        "nofile": clamp_rlimit(resource.RLIMIT_NOFILE, OPEN_FILES),
        # Counts threads per user (here: user namespace). Does not bind root; the control group does.
        "nproc": clamp_rlimit(resource.RLIMIT_NPROC, max_tasks(spec.limits)),
    }
    # A lower priority keeps the machine, and the meter, responsive.
    return ["nice", "-n", "5", "prlimit", *(f"--{name}={value}" for name, value in limits.items()), "--", *spec.command]


def max_tasks(limits: ResourceLimits) -> int:
    """Return the kernel's limit of processes and threads, above the meter's so that the meter reports the reason."""
    return limits.processes * THREADS_PER_PROCESS * 5 // 4 + 64


def clamp_rlimit(kind: int, limit: int) -> int:
    """Return `limit`, or the caller's own hard limit if that is lower: it cannot be raised."""
    hard = resource.getrlimit(kind)[1]
    return limit if hard == resource.RLIM_INFINITY else min(limit, hard)


def build_environment(spec: SandboxSpec) -> dict[str, str]:
    home = "/tmp"  # noqa: S108  (inside the sandbox)
    return {"PATH": "/usr/bin:/bin", "HOME": home, "USER": "nobody", "LANG": "C.UTF-8", **spec.environment}


def bind_system_folder(path: Path) -> Iterator[str]:
    """Yield the arguments that show a system folder; a link (such as /lib to /usr/lib) stays a link inside."""
    if path.is_symlink():
        yield from ("--symlink", str(path.readlink()), str(path))
    elif path.exists():
        yield from ("--ro-bind", str(path), str(path))


@cache
def list_interpreter_paths() -> tuple[str, ...]:
    """Return what this Python reads outside /usr, wherever it lies: its installations and its packages.

    Packages may lie outside the prefixes: pipx shares some between environments by a .pth file. A folder that a .pth
    file adds counts only if packages were installed into it, so that an editable checkout stays out of sight.
    """
    # The isolated search path is that of the jobs: without the user's own packages, PYTHONPATH and the current folder.
    script = "import sys; print(*sys.path, sep='\\0')"
    result = subprocess.run([sys.executable, "-I", "-c", script], capture_output=True, text=True, check=True)
    prefixes = {Path(prefix) for prefix in (sys.prefix, sys.exec_prefix, sys.base_prefix, sys.base_exec_prefix)}
    paths = {path for prefix in prefixes for path in list_prefix_paths(prefix)}
    paths |= {path for path in map(Path, result.stdout.strip().split("\0")) if any(path.glob("*.dist-info"))}
    program = Path(sys.executable)
    while program.is_symlink():
        program = Path(os.path.normpath(program.parent / program.readlink()))
        paths.add(program)
    paths |= {path.resolve() for path in paths}  # links such as uv's from 3.12 to 3.12.1 may point there
    visible = {*map(Path, SYSTEM), *paths}
    return tuple(sorted(str(path) for path in paths - set(map(Path, SYSTEM)) if visible.isdisjoint(path.parents)))


def list_prefix_paths(prefix: Path) -> list[Path]:
    """Return the prefix; only its folders of programs and libraries if it also has files of the user."""
    if not Path.home().is_relative_to(prefix) and prefix != Path.home() / ".local":
        return [prefix]
    return [path for path in map(prefix.joinpath, PREFIX_PARTS) if path.exists()]


def bind_mount(mount: Mount) -> tuple[str, str, str]:
    return "--bind" if mount.writable else "--ro-bind", str(mount.path), str(mount.path)
