"""The processes of a train on one machine: started together, watched, stopped in order.

Not a general supervisor: production uses containers (compose.yaml). A process that ends is started again after a
growing pause; nothing is left behind, even when this one is killed (the kernel tells the children).
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
LONGEST_PAUSE = 30.0


@dataclass
class Part:
    """One process of the train."""

    name: str
    command: Sequence[str]
    log: Path
    stop_seconds: float = 10
    """How long it may take to end after SIGTERM before it is killed."""
    environment: dict[str, str] = field(default_factory=dict)
    process: subprocess.Popen[bytes] | None = None
    restarts: int = 0
    next_start: float = 0

    def start(self) -> None:
        self.log.parent.mkdir(parents=True, exist_ok=True)
        parent = os.getpid()

        def end_with_parent() -> None:
            LIBC.prctl(PR_SET_PDEATHSIG, signal.SIGTERM)
            if os.getppid() != parent:  # it died before we asked
                os.kill(os.getpid(), signal.SIGTERM)

        with self.log.open("ab") as log:
            # A session of its own: Ctrl-C reaches us alone, and we stop the parts in order.
            self.process = subprocess.Popen(
                self.command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                env={**os.environ, **self.environment},
                start_new_session=True,
                preexec_fn=end_with_parent,
            )

    def running(self) -> bool:
        return self.process is not None and self.process.poll() is None

    def revive(self, now: float) -> bool:
        """Start the process again if it has ended and its pause is over; return whether it was started."""
        if self.running() or now < self.next_start:
            return False
        self.restarts += 1
        self.next_start = now + min(LONGEST_PAUSE, 2.0**self.restarts)
        self.start()
        return True

    def stop(self) -> None:
        """Ask it to end, wait, and kill what is left of its session."""
        if self.process is None:
            return
        if self.process.poll() is None:
            self.process.terminate()
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.process.wait(self.stop_seconds)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()

    def last_lines(self, count: int = 5) -> str:
        if not self.log.exists():
            return ""
        return "\n".join(self.log.read_text(errors="replace").splitlines()[-count:])


def wait_until(ready: Path, part: Part, seconds: float) -> None:
    """Wait for a file that a part makes when it is ready."""
    deadline = time.monotonic() + seconds
    while not ready.exists():
        if not part.running() or time.monotonic() > deadline:
            raise RuntimeError(f"{part.name} did not start:\n{part.last_lines()}")
        time.sleep(0.05)
