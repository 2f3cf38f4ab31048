"""Child processes of `manage.py run`: started together, restarted when they exit, stopped in order.

For one machine only; production uses containers (compose.yaml). No child outlives this process, even if it is killed:
the kernel terminates them.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import subprocess
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

PR_SET_PDEATHSIG = 1
LIBC = ctypes.CDLL(None, use_errno=True)
MAX_RESTART_DELAY = 30.0


@dataclass
class ManagedProcess:
    name: str
    command: Sequence[str]
    log: Path
    stop_seconds: float = 10  # from SIGTERM to SIGKILL
    environment: dict[str, str] = field(default_factory=dict)
    process: subprocess.Popen[bytes] | None = None
    restarts: int = 0
    next_start: float = 0

    def start(self) -> None:
        self.log.parent.mkdir(parents=True, exist_ok=True)
        parent = os.getpid()

        def end_with_parent() -> None:
            LIBC.prctl(PR_SET_PDEATHSIG, signal.SIGTERM)
            if os.getppid() != parent:  # the parent died before the call
                os.kill(os.getpid(), signal.SIGTERM)

        with self.log.open("ab") as log:
            # In a new session Ctrl-C reaches only the parent, which stops its children in order.
            self.process = subprocess.Popen(
                self.command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                env={**os.environ, **self.environment},
                start_new_session=True,
                preexec_fn=end_with_parent,
            )

    def is_running(self) -> bool:
        return self.process is not None and self.process.poll() is None

    def restart_if_exited(self, now: float) -> bool:
        """Restart the process if it has exited and its delay is over; return whether it was started."""
        if self.is_running() or now < self.next_start:
            return False
        self.restarts += 1
        self.next_start = now + min(MAX_RESTART_DELAY, 2.0**self.restarts)
        self.start()
        return True

    def stop(self) -> None:
        """Send SIGTERM, wait, and kill the rest of its session."""
        if self.process is None:
            return
        if self.process.poll() is None:
            self.process.terminate()
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.process.wait(self.stop_seconds)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()

    def read_last_lines(self, count: int = 5) -> str:
        if not self.log.exists():
            return ""
        return "\n".join(self.log.read_text(errors="replace").splitlines()[-count:])


def wait_for_file(path: Path, process: ManagedProcess, seconds: float) -> None:
    """Wait for a file that a process creates when it is ready; raise RuntimeError if it is not created."""
    deadline = time.monotonic() + seconds
    while not path.exists():
        if not process.is_running() or time.monotonic() > deadline:
            raise RuntimeError(f"{process.name} did not start:\n{process.read_last_lines()}")
        time.sleep(0.05)
