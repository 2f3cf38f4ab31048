"""Ways out of the bubblewrap sandbox that real processes try: mounts, devices, ptrace, links, sockets, IPC, /proc.

Archives: `tests/trainer/node/test_archives.py`. Locks and the page cache of read-only files that two sandboxes share
cannot be closed, and carry nothing: a process with the test split runs no foreign code (SECURITY.md), as
`test_score_of_traced_run_needs_no_python` in `tests/trainer/scoring/test_text_score.py` shows.
"""

from __future__ import annotations

import ctypes
import os
import shutil
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.trainer.sandbox.test_sandbox import REFUSAL, EndedProcess
from tests.trainer.sandbox.test_sandbox import run as run
from trainer.sandbox import Mount

pytestmark = [pytest.mark.processes, pytest.mark.skipif(REFUSAL is not None, reason=str(REFUSAL))]


def test_mount_and_namespace_calls_are_refused(run: Callable[..., EndedProcess], tmp_path: Path) -> None:
    folder = str(tmp_path / "out")
    ended = run(f"""
        import ctypes, os
        libc = ctypes.CDLL(None, use_errno=True)
        folder = {folder!r}.encode()
        os.mkdir(folder + b"/m")
        print(libc.mount(b"none", folder + b"/m", b"tmpfs", 0, None))
        print(libc.mount(b"/", folder + b"/m", None, 4096, None))  # MS_BIND
        print(libc.umount2(folder, 2))
        print(libc.mount(None, b"/", None, 32, None))  # MS_REMOUNT, writable
        print(libc.pivot_root(b"/", b"/") if hasattr(libc, "pivot_root") else -1)
        print(libc.chroot(folder))
        print(libc.unshare(0x00020000), libc.unshare(0x10000000), libc.unshare(0x40000000))
    """)
    assert ended.output.split() == ["-1"] * 9


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


def test_set_user_id_programs_give_no_rights(run: Callable[..., EndedProcess], tmp_path: Path) -> None:
    program = tmp_path / "tools" / "id"
    program.parent.mkdir()
    shutil.copy("/usr/bin/id", program)
    program.chmod(0o4755)
    ended = run(
        f"""
        import os, subprocess
        print(subprocess.run([{str(program)!r}, "-u"], capture_output=True, text=True).stdout.strip() != "0")
        out = {str(tmp_path / "out")!r}
        for call in (lambda: os.setuid(0), lambda: os.setgroups([0]), lambda: os.chown(out, 0, 0)):
            try:
                call()
                print("changed")
            except PermissionError:
                print("refused")
            except OSError as error:
                print("refused" if error.errno == 22 else error)
        """,
        mounts=(Mount(program.parent),),
    )
    assert ended.output.split() == ["True", "refused", "refused", "refused"]


def test_other_processes_cannot_be_traced_or_signaled(run: Callable[..., EndedProcess]) -> None:
    victim = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
    try:
        ended = run(f"""
            import ctypes, os
            libc = ctypes.CDLL(None, use_errno=True)
            for pid in ({victim.pid}, {os.getpid()}):
                print(libc.ptrace(16, pid, 0, 0))  # PTRACE_ATTACH
                print(os.path.exists(f"/proc/{{pid}}/mem"))
                try:
                    os.kill(pid, 9)
                    print("killed")
                except OSError:
                    print("refused")
        """)
        assert ended.output.split() == ["-1", "False", "refused"] * 2
        assert victim.poll() is None
    finally:
        victim.kill()
        victim.wait()


def test_links_lead_to_nothing_outside(run: Callable[..., EndedProcess], tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_text("secret")
    out = str(tmp_path / "out")
    ended = run(f"""
        import os
        os.symlink({str(secret)!r}, {out!r} + "/symlink")
        os.symlink("/proc/1/root" + {str(secret)!r}, {out!r} + "/root")
        os.symlink("/proc/self/cwd/../../../../.." + {str(secret)!r}, {out!r} + "/cwd")
        for name in ("symlink", "root", "cwd"):
            try:
                open({out!r} + "/" + name).read()
                print("read")
            except OSError:
                print("refused")
        for source in ({str(secret)!r}, "/usr/bin/env"):
            try:
                os.link(source, {out!r} + "/hard")
                print("linked")
            except OSError:
                print("refused")
    """)
    assert ended.output.split() == ["refused"] * 5


def test_sockets_outside_are_not_reachable(run: Callable[..., EndedProcess], tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as abstract, socket.socket(socket.AF_UNIX) as named:
        name = f"dailytrain-test-{os.getpid()}"
        abstract.bind("\0" + name)
        abstract.listen()
        path = tmp_path / "socket"
        named.bind(str(path))
        named.listen()
        ended = run(f"""
            import socket
            for address in ("\\0{name}", {str(path)!r}):
                try:
                    socket.socket(socket.AF_UNIX).connect(address)
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
    assert ended.output.split() == ["refused"] * 4


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
