"""A running sandbox: started, metered and ended by one thread of its own.

The thread matters: Linux sends the parent-death signal when the *thread* that started a child ends, so that thread
has to live as long as the sandbox. When this process is killed the thread dies with it, and so does the sandbox.
"""

from __future__ import annotations

import subprocess
import threading
import time
from collections.abc import Sequence
from typing import Any, Protocol, Self

from trainer.sandbox.meter import ResourceMeter
from trainer.sandbox.spec import OutputStream, SandboxError, SandboxSpec

METER_SECONDS = 0.1  # interval between two measurements

KILLED = 137


class SandboxProcess:
    """The process that a driver's `start` returns. Drivers override `_launch`, `terminate` and `_kill_all`."""

    def __init__(
        self, spec: SandboxSpec, stdout: OutputStream, stderr: OutputStream, follow_processes: bool = True
    ) -> None:
        """`follow_processes`: as of `ResourceMeter`."""
        self._spec, self._stdout, self._stderr = spec, stdout, stderr
        self._meter = ResourceMeter(spec, follow_processes)
        self.limit_error: str | None = None
        """A sentence about the limit that it exceeded and was killed for; None if it exceeded none."""
        self.is_out_of_time = False
        """Whether that limit is the wall time, which says nothing about the command: a slow machine reaches it, too."""
        self._popen: subprocess.Popen[bytes] | None = None
        self._started_at = time.monotonic()
        self._ended_at: float | None = None
        self._code: int | None = None
        self._start_error: BaseException | None = None
        self._killed = threading.Event()
        self._started = threading.Event()
        self._finished = threading.Event()

    def start(self) -> Self:
        """Start the command and return once it runs; raise the error if it cannot be started."""
        threading.Thread(target=self._run, name="sandbox", daemon=True).start()
        self._started.wait()
        if self._start_error is not None:
            raise self._start_error
        return self

    @property
    def seconds(self) -> float:
        """Wall time from the start to now or to the end."""
        return (self._ended_at or time.monotonic()) - self._started_at

    @property
    def pid(self) -> int:
        """Process id of the sandbox's program (not of the command), as seen from outside."""
        assert self._popen is not None
        return self._popen.pid

    def poll(self) -> int | None:
        """Return the exit code (128 + n for signal n) once all of its processes are gone; None before."""
        return self._code if self._finished.is_set() else None

    def wait(self, timeout: float | None = None) -> int | None:
        """Wait for the end, at most `timeout` seconds; return what `poll` returns."""
        self._finished.wait(timeout)
        return self.poll()

    def allow_seconds(self, seconds: float) -> None:
        """Raise the limit of wall time to `seconds` since the start, if it is lower."""
        self._meter.wall_seconds = max(self._meter.wall_seconds, seconds)

    def terminate(self) -> None:
        """Send SIGTERM to the command. It may take its time, or ignore it."""
        raise NotImplementedError

    def kill(self) -> int:
        """Kill all of its processes; return the exit code when they are gone."""
        self._killed.set()
        self._kill_all()
        self._finished.wait()
        assert self._code is not None
        return self._code

    def _launch(self) -> subprocess.Popen[bytes]:
        raise NotImplementedError

    def _spawn(self, command: Sequence[str], **options: Any) -> subprocess.Popen[bytes]:
        """Start a program in a session of its own; raise `SandboxError`."""
        out, err = self._stdout, self._stderr
        try:
            return subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=out, stderr=err, start_new_session=True, **options
            )
        except OSError as error:
            raise SandboxError(f"{self._spec.command[0]} could not be started: {error}.") from error

    def _kill_all(self) -> None:
        """Send SIGKILL to all of its processes. Safe to repeat, and to call after the end."""
        raise NotImplementedError

    def _wait_until_gone(self) -> None:
        """Return when none of its processes is left."""

    def _run(self) -> None:
        try:
            self._popen = self._launch()
        except BaseException as error:
            self._start_error = error
            self._started.set()
            return
        self._started_at = time.monotonic()
        self._started.set()
        code = KILLED
        try:
            code = self._watch(self._popen)
        finally:  # also when the meter fails: nothing runs unmetered
            self._kill_all()
            self._wait_until_gone()
            self._ended_at = time.monotonic()
            if self.limit_error is None and not self._killed.is_set():
                self.limit_error = self._meter.check_disk()
            self._code = code if code >= 0 else 128 - code
            self._finished.set()

    def _watch(self, popen: subprocess.Popen[bytes]) -> int:
        while True:
            try:
                return popen.wait(METER_SECONDS)
            except subprocess.TimeoutExpired:
                if self.limit_error is None:
                    seconds = self.seconds
                    self.limit_error = self._meter.check(popen.pid, seconds)
                    self.is_out_of_time = self._meter.is_out_of_time(seconds)
                if self.limit_error is not None or self._killed.is_set():
                    self._kill_all()


def find_command_error(command: Sequence[str]) -> str | None:
    """Run a short command; return None if it succeeds, else the first line of its error output."""
    try:
        result = subprocess.run(command, capture_output=True, text=True, timeout=10, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        return str(error)
    lines = result.stderr.strip().splitlines() or [f"exit code {result.returncode}"]
    return lines[0] if result.returncode else None


class SandboxDriver(Protocol):
    """One way of confining a command. Constructed without arguments."""

    name: str

    def find_problem(self) -> str | None:
        """Run a test command; return None if this driver works on this machine, else a sentence that says why not."""

    def start(self, spec: SandboxSpec, stdout: OutputStream, stderr: OutputStream) -> SandboxProcess:
        """Start the command with empty standard input; raise `SandboxError` if it cannot be started."""
