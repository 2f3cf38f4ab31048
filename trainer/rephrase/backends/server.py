"""A server that we start beside a sitting: waited for, started anew when it dies, ended with all that it started."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from trainer.rephrase.backends.endpoint import Endpoint, wait_until_ready
from trainer.rephrase.backends.protocol import BackEndError, Place

READY_SECONDS = 1800.0
"""A first start fetches the weights: 4 GB on a slow line."""
STOP_SECONDS = 15.0
RESTARTS = 3
"""In a row, each without a word written between: then it is of no use."""
CALM_SECONDS = 300.0
"""A server that lived so long is not counted as failing in a row."""
TAIL = 2000


class Server:
    """One process that serves a model on a port of this machine."""

    def __init__(self, command: Callable[[int], Sequence[str]], model: str, place: Place, title: str) -> None:
        """`command`: the command line for a port."""
        self._command = command
        self._model = model
        self._place = place
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._begun = 0.0
        self._restarts = 0
        port = free_port()
        self._port = port
        self.endpoint = Endpoint(f"http://127.0.0.1:{port}/v1", model, title=title)
        self.endpoint.revive = self.revive

    def start(self) -> None:
        """Start it and wait until it serves its model. Raise `BackEndError`, with its last words."""
        environment = {**os.environ, **self._place.environment}
        with self._place.log.open("ab") as log:
            try:
                self._process = subprocess.Popen(
                    [str(word) for word in self._command(self._port)],
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                    env=environment,
                    start_new_session=True,
                )
            except OSError as error:
                raise BackEndError(f"The back end's server could not be started: {error.strerror}.") from error
        self._begun = time.monotonic()
        try:
            wait_until_ready(self.endpoint, self._model, self._alive, self._place.unwanted, READY_SECONDS)
        except BackEndError as error:
            self.stop()
            raise BackEndError(f"{error} {last_words(self._place.log)}".rstrip()) from error

    def revive(self) -> None:
        """Start it anew if it has ended. Raise `BackEndError` where that does not help."""
        with self._lock:
            if self._alive() or self._place.unwanted():
                return
            self._restarts = 1 if time.monotonic() - self._begun > CALM_SECONDS else self._restarts + 1
            if self._restarts > RESTARTS:
                raise BackEndError(f"The back end's server ends again and again. {last_words(self._place.log)}")
            self.stop()
            self.start()

    def stop(self) -> None:
        """End it and all that it started: first asked, then made to."""
        process = self._process
        if process is None:
            return
        for number, patience in ((signal.SIGTERM, STOP_SECONDS), (signal.SIGKILL, STOP_SECONDS)):
            with suppress(ProcessLookupError):
                os.killpg(process.pid, number)
            with suppress(subprocess.TimeoutExpired):
                process.wait(patience)

    def _alive(self) -> bool:
        return self._process is not None and self._process.poll() is None


@contextmanager
def served(command: Callable[[int], Sequence[str]], model: str, place: Place, title: str) -> Iterator[Endpoint]:
    """A server of ours while it is needed."""
    server = Server(command, model, place, title)
    try:
        server.start()
        yield server.endpoint
    finally:
        server.stop()
        server.endpoint.close()


def free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


def last_words(log: Path) -> str:
    """Return the last line that a server wrote, and where there are more."""
    with suppress(OSError):
        lines = log.read_bytes()[-TAIL:].decode(errors="replace").strip().splitlines()
        if lines:
            return f"Its last words: {lines[-1].strip()}"
    return ""
