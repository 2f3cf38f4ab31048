"""A running box: started, metered and ended by one thread of its own.

The thread matters: Linux sends the "parent has died" signal when the *thread* that started a child ends, so the
starter has to live as long as the box. When this process is killed, that thread goes with it, and the box too.
"""

from __future__ import annotations

import subprocess
import threading
import time
from collections.abc import Callable, Sequence

from trainer.sandbox.meter import Meter

METER_SECONDS = 0.1
"""Between two looks at what the box uses."""

KILLED = 137


class Process:
    """What a driver's `start` returns. Drivers override `_launch`, `stop` and `_destroy`."""

    def __init__(self, meter: Meter) -> None:
        self._meter = meter
        self._popen: subprocess.Popen[bytes] | None = None
        self._begun = time.monotonic()
        self._ended: float | None = None
        self._code: int | None = None
        self._failure: BaseException | None = None
        self._exceeded: str | None = None
        self._killed = threading.Event()
        self._started = threading.Event()
        self._finished = threading.Event()

    def begin(self) -> Process:
        """Start the command and return when it runs; an error of starting it is raised here."""
        threading.Thread(target=self._live, name="sandbox", daemon=True).start()
        self._started.wait()
        if self._failure is not None:
            raise self._failure
        return self

    @property
    def exceeded(self) -> str | None:
        """The sentence about the limit it went beyond, and was killed for."""
        return self._exceeded

    @property
    def seconds(self) -> float:
        """Wall time from its start to now or to its end."""
        return (self._ended or time.monotonic()) - self._begun

    @property
    def pid(self) -> int:
        """The process id, outside, of what was started (the sandbox's own program, not the command)."""
        assert self._popen is not None
        return self._popen.pid

    def poll(self) -> int | None:
        """Return the exit code, 128 + n for signal n, once the last of its processes is gone; None before."""
        return self._code if self._finished.is_set() else None

    def wait(self, timeout: float | None = None) -> int | None:
        """Wait for the end; return what `poll` returns, which is None if the time was not enough."""
        self._finished.wait(timeout)
        return self.poll()

    def stop(self) -> None:
        """Ask the command to end (SIGTERM). It may take its time, or refuse."""
        raise NotImplementedError

    def kill(self) -> int:
        """End all of its processes now; return the exit code when they are gone."""
        self._killed.set()
        self._destroy()
        self._finished.wait()
        assert self._code is not None
        return self._code

    def _launch(self) -> subprocess.Popen[bytes]:
        raise NotImplementedError

    def _destroy(self) -> None:
        """Send the end to all of its processes. Safe to call again, and after the end."""
        raise NotImplementedError

    def _gone(self) -> None:
        """Return when none of its processes is left."""

    def _live(self) -> None:
        try:
            self._popen = self._launch()
        except BaseException as error:
            self._failure = error
            self._started.set()
            return
        self._begun = time.monotonic()
        self._started.set()
        code = KILLED
        try:
            code = self._watch(self._popen)
        finally:  # also when the meter is at fault: nothing runs unmetered
            self._destroy()
            self._gone()
            self._ended = time.monotonic()
            if self._exceeded is None and not self._killed.is_set():
                self._exceeded = self._meter.disk_exceeded()
            self._code = code if code >= 0 else 128 - code
            self._finished.set()

    def _watch(self, popen: subprocess.Popen[bytes]) -> int:
        while True:
            try:
                return popen.wait(METER_SECONDS)
            except subprocess.TimeoutExpired:
                if self._exceeded is None:
                    self._exceeded = self._meter.exceeded(popen.pid, self.seconds)
                if self._exceeded is not None or self._killed.is_set():
                    self._destroy()


def first_line(run: Callable[..., subprocess.CompletedProcess[str]], command: Sequence[str]) -> str | None:
    """Run a short command; return None if it worked, else the first line of what it complained about."""
    try:
        done = run(command, capture_output=True, text=True, timeout=10, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        return str(error)
    return None if done.returncode == 0 else (done.stderr.strip().splitlines() or [f"exit code {done.returncode}"])[0]
