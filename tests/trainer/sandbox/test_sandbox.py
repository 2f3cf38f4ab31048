"""Isolation and limits of the bubblewrap sandbox, tested with real processes that try to get out.

Archives: `tests/trainer/node/test_archives.py`. Locks and the page cache of read-only files that two sandboxes share
cannot be closed, and carry nothing: a process with the test split runs no foreign code (SECURITY.md), as
`test_score_of_traced_run_needs_no_python` in `tests/trainer/scoring/test_text_score.py` shows.
"""

from __future__ import annotations

import ctypes
import errno
import os
import socket
import subprocess
import sys
import sysconfig
import tempfile
import textwrap
import venv
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import psutil
import pytest

from tests.support.paths import REPOSITORY
from tests.support.waits import WAIT_SECONDS, wait_until
from trainer.sandbox import Mount, ResourceLimits, SandboxError, SandboxProcess, SandboxSpec, cgroup, get_driver

REFUSAL = get_driver("bubblewrap").find_problem()
pytestmark = [pytest.mark.processes, pytest.mark.skipif(REFUSAL is not None, reason=str(REFUSAL))]
LIMITS = ResourceLimits(wall_seconds=WAIT_SECONDS, memory_bytes=400_000_000, disk_bytes=20_000_000, processes=8)


class EndedProcess(NamedTuple):
    code: int
    output: str
    limit_error: str | None
    seconds: float


def build_spec(
    out: Path, code: str, limits: ResourceLimits = LIMITS, mounts: tuple[Mount, ...] = (), **more: object
) -> SandboxSpec:
    out.mkdir(exist_ok=True)
    command = [sys.executable, "-I", "-S", "-c", textwrap.dedent(code)]
    return SandboxSpec(command, {}, [Mount(out, writable=True), *mounts], out, limits, **more)  # type: ignore[arg-type]


@pytest.fixture
def run(tmp_path: Path) -> Callable[..., EndedProcess]:
    def run(code: str, limits: ResourceLimits = LIMITS, mounts: tuple[Mount, ...] = (), **more: object) -> EndedProcess:
        with (tmp_path / "output").open("w+b") as output:
            process = get_driver("bubblewrap").start(
                build_spec(tmp_path / "out", code, limits, mounts, **more), output, output
            )
            ended = process.wait(WAIT_SECONDS)
            assert ended is not None, process.kill()
            output.seek(0)
            return EndedProcess(ended, output.read().decode(), process.limit_error, process.seconds)

    return run


def test_command_returns_its_exit_code_and_leaves_no_control_group(run: Callable[..., EndedProcess]) -> None:
    assert run("print('hello'); raise SystemExit(7)")[:3] == (7, "hello\n", None)
    assert run("import os; os.kill(os.getpid(), 11)").code == 128 + 11
    assert [folder for root in cgroup.ROOTS for folder in root.glob(f"{cgroup.NAME}-{os.getpid()}-*")] == []


def test_sandbox_hides_home_and_other_folders(run: Callable[..., EndedProcess], tmp_path: Path) -> None:
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "secret").write_text("secret")
    with tempfile.NamedTemporaryFile(dir=Path.home(), prefix=".dailytrain-probe-") as probe:
        ended = run(f"""
            import os
            secret = {str(tmp_path / "other" / "secret")!r}
            os.symlink(secret, "link")
            for path in ({probe.name!r}, secret, "/etc/passwd", "link", "/proc/1/root" + secret):
                print(os.path.exists(path))
            print(sorted(os.listdir({str(tmp_path)!r})))
        """)
    assert ended.output == "False\n" * 5 + "['out']\n"


START_IMPORT = """
import subprocess, sys, tempfile
from pathlib import Path
from trainer.sandbox import ResourceLimits, SandboxSpec, get_driver
limits = ResourceLimits(60, 10**9, 10**9, 8)
spec = SandboxSpec([sys.executable, "-s", "-P", "-c", sys.argv[1]], {}, [], Path("/"), limits)
with tempfile.TemporaryFile() as output:
    code = get_driver("bubblewrap").start(spec, output, output).wait()
    output.seek(0)
    print(output.read().decode())
raise SystemExit(code)
"""


def run_in_environment(python: Path, code: str) -> subprocess.CompletedProcess[str]:
    """Run code in the sandbox that another Python starts."""
    environment = {**os.environ, "PYTHONPATH": str(REPOSITORY)}
    command = [python, "-c", START_IMPORT, code]
    return subprocess.run(command, capture_output=True, text=True, env=environment, timeout=WAIT_SECONDS)


def create_environment(folder: Path, *package_folders: Path) -> Path:
    """Create an environment that finds packages in these folders and in this environment's; return its Python."""
    venv.create(folder)
    packages = next(folder.glob("lib/python3*/site-packages"))
    (packages / "shared.pth").write_text("\n".join(map(str, [sysconfig.get_paths()["purelib"], *package_folders])))
    return folder / "bin" / "python"


def install_package(folder: Path, name: str) -> None:
    (folder / f"{name}-1.0.dist-info").mkdir(parents=True)
    (folder / f"{name}.py").write_text("place = __file__")


def test_packages_outside_the_prefix_are_visible_and_read_only(tmp_path: Path) -> None:
    shared, checkout = tmp_path / "shared" / "packages", tmp_path / "checkout"
    install_package(shared, "from_elsewhere")
    checkout.mkdir()
    (checkout / "secret").write_text("secret")
    python = create_environment(tmp_path / "environment", shared, checkout)
    ended = run_in_environment(
        python,
        f"import os, psutil, from_elsewhere; print(from_elsewhere.place, os.access({str(shared)!r}, os.W_OK));"
        f"print(os.path.exists({str(checkout)!r}), os.listdir({str(tmp_path)!r}))",
    )
    assert ended.returncode == 0, ended.stdout + ended.stderr
    place, rest = ended.stdout.split("\n", 1)
    assert place == f"{shared / 'from_elsewhere.py'} False"
    assert rest.startswith("False ")
    assert "shared" in rest
    assert "checkout" not in rest


def test_environment_in_the_home_folder_shows_no_other_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    python = create_environment(tmp_path)
    (tmp_path / ".ssh").mkdir()
    ended = run_in_environment(python, f"import psutil, os; print(sorted(os.listdir({str(tmp_path)!r})))")
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert ".ssh" not in ended.stdout
    assert "pyvenv.cfg" in ended.stdout


def test_sandbox_writes_only_to_writable_mounts(run: Callable[..., EndedProcess], tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    ended = run(
        f"""
        import sys
        for path in ["/x", "/usr/x", "/dev/x", {str(tmp_path / "data" / "x")!r}, sys.prefix + "/x",
                     {str(tmp_path / "out" / "x")!r}, "/tmp/dailytrain-test", "/dev/shm/dailytrain-test"]:
            try:
                open(path, "w").write("x")
                print("written")
            except OSError as error:
                print(error.errno)
        """,
        mounts=(Mount(tmp_path / "data"),),
    )
    assert ended.output.split() == ["30"] * 5 + ["written"] * 3  # 30: a read-only file system
    assert (tmp_path / "out" / "x").read_text() == "x"
    assert not Path("/tmp/dailytrain-test").exists()


def test_sandbox_has_no_capabilities_and_sees_no_other_process(run: Callable[..., EndedProcess]) -> None:
    ended = run("""
        import ctypes, os
        print([line.split()[1] for line in open("/proc/self/status") if line.startswith(("CapEff", "NoNewPrivs"))])
        print(ctypes.CDLL(None).unshare(0x10000000))
        print(len([name for name in os.listdir("/proc") if name.isdigit()]))
        print(os.getuid(), sorted(os.environ))
    """)
    capabilities, unshared, visible, rest = ended.output.splitlines()
    assert (capabilities, unshared, visible) == ("['0000000000000000', '1']", "-1", "2")
    assert rest == "65534 ['HOME', 'LANG', 'LC_CTYPE', 'PATH', 'PWD', 'USER']".replace("'LC_CTYPE', ", "")


def test_files_in_memory_have_a_limit(run: Callable[..., EndedProcess]) -> None:
    ended = run("""
        for folder in ("/tmp", "/dev/shm"):
            try:
                with open(folder + "/big", "wb") as file:
                    while True:
                        file.write(bytes(1_000_000))
            except OSError as error:
                print(error.errno)
    """)
    assert ended.output == "28\n28\n"  # no space left


EXCEEDING = {
    "deleted mapped file": (
        "disk",
        """
        with open("x", "w+b") as file:
            file.truncate(21_000_000)
            view = mmap.mmap(file.fileno(), 0)
        os.unlink("x")
        view[:] = bytes(21_000_000)
        time.sleep(60)
        """,
    ),
    "just before the end": ("disk", "open('x', 'wb').write(bytes(21_000_000))"),
    "growing file": ("disk", "file = open('x', 'wb')\nwhile True: file.write(bytes(10_000_000))"),
    # Errors are from the kernel's limit, which must not end the job before the first measurement.
    "fork bomb": (
        "processes",
        """
        while True:
            try:
                os.fork()
            except OSError:
                pass
        """,
    ),
    "threads": (
        "threads",
        """
        for _ in range(1000):
            try:
                threading.Thread(target=time.sleep, args=(60,), daemon=True).start()
            except RuntimeError:
                break
        time.sleep(60)
        """,
    ),
    "memory": ("memory", "held = [bytearray(b'x' * 10_000_000) for _ in range(45)]; time.sleep(60)"),
    "memfd files": ("memory", "for _ in range(45): os.write(os.memfd_create('x'), bytes(10_000_000))\ntime.sleep(60)"),
}
LIMIT_ERRORS = {
    "disk": "It used more than 20.0 MB of disk.",
    "processes": "It had more than 8 processes at once.",
    "threads": "It had more than 128 threads at once.",
    "memory": "It used more than 400.0 MB of memory.",
}


@pytest.mark.parametrize("name", EXCEEDING)
def test_command_beyond_a_limit_is_killed_with_a_reason(run: Callable[..., EndedProcess], name: str) -> None:
    limit, code = EXCEEDING[name]
    ended = run("import mmap, os, threading, time\n" + textwrap.dedent(code))
    assert ended.limit_error == LIMIT_ERRORS[limit]
    assert ended.code == 137 or name in ("just before the end", "growing file"), "the kernel's limit may end that one"
    assert ended.seconds < 60


def test_memory_limit_counts_shared_pages_once(run: Callable[..., EndedProcess]) -> None:
    ended = run("""
        import os, time
        held = bytearray(b"x" * 150_000_000)
        for _ in range(4):
            if os.fork() == 0:
                time.sleep(1)
                os._exit(0)
        time.sleep(1.2)
    """)
    assert (ended.code, ended.limit_error) == (0, None)


FAMILY = """
    import os, time
    for _ in range(3):
        if os.fork() == 0:
            os.setsid()
            if os.fork() == 0:
                time.sleep(60)
            os._exit(0)
    open("ready", "w").close()
    time.sleep(60)
"""


def test_kill_ends_the_whole_tree(tmp_path: Path) -> None:
    process = start_sandbox(build_spec(tmp_path / "out", FAMILY))
    wait_until(lambda: (tmp_path / "out" / "ready").exists())
    wait_until(lambda: len(list_processes_of(tmp_path)) >= 4)
    assert process.kill() == 137
    assert list_processes_of(tmp_path) == []
    assert process.limit_error is None


def test_command_end_kills_its_background_processes(tmp_path: Path) -> None:
    code = FAMILY.replace('open("ready", "w").close()\n    time.sleep(60)', "")
    process = start_sandbox(build_spec(tmp_path / "out", code))
    assert process.wait(WAIT_SECONDS) == 0
    assert list_processes_of(tmp_path) == []


def test_killed_starter_leaves_no_process(tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    starter = f"""
import subprocess, sys, time
from pathlib import Path
from trainer.sandbox import Mount, ResourceLimits, SandboxSpec, get_driver
out = Path({str(tmp_path / "out")!r})
code = {textwrap.dedent(FAMILY)!r}
limits = ResourceLimits(60, 10**9, 10**9, 20)
spec = SandboxSpec([sys.executable, "-I", "-S", "-c", code], {{}}, [Mount(out, True)], out, limits)
get_driver("bubblewrap").start(spec, subprocess.DEVNULL, subprocess.DEVNULL)
time.sleep(60)
"""
    parent = subprocess.Popen([sys.executable, "-c", starter])
    try:
        wait_until(lambda: (tmp_path / "out" / "ready").exists())
        wait_until(lambda: len(list_processes_of(tmp_path)) >= 4)
    finally:
        parent.kill()
        parent.wait()
    wait_until(lambda: list_processes_of(tmp_path) == [])


def test_sandbox_that_cannot_be_watched_or_mounted_is_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def open_no_more_files(pid: int) -> int:
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    missing = Mount(tmp_path / "nowhere")
    with pytest.raises(SandboxError, match="nowhere cannot be mounted"):
        start_sandbox(build_spec(tmp_path / "out", "", mounts=(missing,)))
    monkeypatch.setattr(os, "pidfd_open", open_no_more_files)
    with pytest.raises(SandboxError, match="cannot be watched: Too many open files"):
        start_sandbox(build_spec(tmp_path / "out", "import time; time.sleep(3600)"))
    wait_until(lambda: list_processes_of(tmp_path) == [])


def start_sandbox(what: SandboxSpec) -> SandboxProcess:
    return get_driver("bubblewrap").start(what, subprocess.DEVNULL, subprocess.DEVNULL)


def list_processes_of(path: Path) -> list[int]:
    """Return the processes, other than this one, whose working folder or command line names a path."""
    return [pid for pid in psutil.pids() if pid != os.getpid() and str(path) in describe_process(pid)]


def describe_process(pid: int) -> str:
    found = ""
    for read in (lambda: str(Path(f"/proc/{pid}/cwd").readlink()), lambda: Path(f"/proc/{pid}/cmdline").read_text()):
        try:
            found += read()
        except OSError:
            continue
    return found


# --- ways out ---------------------------------------------------------------------------------------------------------


def test_devices_are_the_harmless_ones(run: Callable[..., EndedProcess], tmp_path: Path) -> None:
    ended = run(f"""
        import os, stat
        allowed = {{"null", "zero", "full", "random", "urandom", "tty", "ptmx"}}
        names = {{name for name in os.listdir("/dev") if stat.S_ISCHR(os.lstat("/dev/" + name).st_mode)
                 or stat.S_ISBLK(os.lstat("/dev/" + name).st_mode)}}
        print(sorted(names - allowed))
        for kind, number in ((stat.S_IFBLK, os.makedev(8, 0)), (stat.S_IFCHR, os.makedev(1, 1))):
            try:
                os.mknod({str(tmp_path / "out" / "device")!r}, kind | 0o600, number)
                print("made")
            except PermissionError:
                print("refused")
    """)
    assert ended.output == "[]\nrefused\nrefused\n"


def test_network_and_sockets_outside_are_not_reachable(run: Callable[..., EndedProcess], tmp_path: Path) -> None:
    server = socket.create_server(("127.0.0.1", 0))
    with server, socket.socket(socket.AF_UNIX) as abstract, socket.socket(socket.AF_UNIX) as named:
        name = f"dailytrain-test-{os.getpid()}"
        abstract.bind("\0" + name)
        abstract.listen()
        path = tmp_path / "socket"
        named.bind(str(path))
        named.listen()
        ended = run(f"""
            import socket
            print([name for _, name in socket.if_nameindex() if name != "lo"])
            for address in ("\\0{name}", {str(path)!r}, {server.getsockname()!r}):
                try:
                    socket.socket(socket.AF_UNIX if isinstance(address, str) else socket.AF_INET).connect(address)
                    print("connected")
                except OSError:
                    print("refused")
            for family, kind in ((socket.AF_PACKET, socket.SOCK_RAW), (socket.AF_INET, socket.SOCK_RAW)):
                try:
                    socket.socket(family, kind, 1)
                    print("opened")
                except PermissionError:
                    print("refused")
        """)
    assert ended.output.split() == ["[]", *["refused"] * 5]


def test_shared_memory_and_queues_outside_are_not_reachable(run: Callable[..., EndedProcess]) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    key = 0x7A000000 + os.getpid()
    segment, queue = libc.shmget(key, 4096, 0o1666), libc.msgget(key, 0o1666)  # IPC_CREAT, accessible to all users
    assert min(segment, queue) >= 0
    shared = Path("/dev/shm") / f"dailytrain-test-{os.getpid()}"
    shared.write_text("secret")
    shared.chmod(0o666)
    try:
        ended = run(f"""
            import ctypes, os
            libc = ctypes.CDLL(None, use_errno=True)
            print(libc.shmget({key}, 4096, 0), libc.msgget({key}, 0), os.path.exists({str(shared)!r}))
        """)
    finally:
        shared.unlink()
        libc.shmctl(segment, 0, None)  # IPC_RMID
        libc.msgctl(queue, 0, None)
    assert ended.output.split() == ["-1", "-1", "False"]


def test_kernel_settings_cannot_be_opened_for_writing(run: Callable[..., EndedProcess]) -> None:
    # Only opened, not written, since a write could change the machine.
    ended = run("""
        import os
        paths = ["/proc/sysrq-trigger", "/proc/kcore", "/sys/kernel/uevent_helper",
                 "/sys/fs/cgroup/cgroup.procs"]
        for folder, _, names in os.walk("/proc/sys"):
            paths += [os.path.join(folder, name) for name in names]
        for path in paths:
            try:
                os.close(os.open(path, os.O_WRONLY))
                print(path)
            except OSError:
                pass
        print(len(paths) > 100)
        # Process 1 is bubblewrap's own, inside like the command: its memory is open, and gives no rights.
        print([line.split()[1] for line in open("/proc/1/status") if line.startswith(("CapEff", "CapPrm", "CapBnd"))])
    """)
    nothing = "0" * 16
    assert ended.output.splitlines() == ["True", str([nothing, nothing, nothing])]


def test_wall_time_limit_exceeded_kills(run: Callable[..., EndedProcess]) -> None:
    ended = run("import time; time.sleep(60)", ResourceLimits(1, 400_000_000, 20_000_000, 8))
    assert ended.limit_error == "It ran longer than 1 seconds."
    assert 1 <= ended.seconds < 60
