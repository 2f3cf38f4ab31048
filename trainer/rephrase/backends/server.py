"""A model server that we start for a session: wait until it is ready, restart it when it dies, stop all it started."""

from __future__ import annotations

import os
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from trainer.distributed.ports import find_free_port
from trainer.rephrase.backends.endpoint import EndpointClient, wait_until_ready
from trainer.rephrase.backends.protocol import BackendContext, BackendError

READY_SECONDS = 1800.0  # the first start downloads the weights: 4 GB on a slow connection
STOP_SECONDS = 15.0
MAX_RESTARTS = 3  # consecutive restarts before the server counts as broken
STABLE_SECONDS = 300.0  # a server that lived this long resets the count of restarts
TAIL_BYTES = 2000


class BackendServer:
    """A process that serves a model on a port of this machine."""

    def __init__(
        self, build_command: Callable[[int], Sequence[str]], model: str, context: BackendContext, title: str
    ) -> None:
        """`build_command` returns the command line for a port."""
        self._context = context
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._started_at = 0.0
        self._restarts = 0
        port = find_free_port()
        self._command = build_command(port)
        self.client = EndpointClient(f"http://127.0.0.1:{port}/v1", model, title=title)
        self.client.recover = self.restart

    def start(self) -> None:
        """Start it and wait until it serves its model. Raise `BackendError` with the last line of its log."""
        with self._context.log.open("ab") as log:
            try:
                self._process = subprocess.Popen(
                    self._command,
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                    env={**os.environ, **self._context.environment},
                    start_new_session=True,
                )
            except OSError as error:
                raise BackendError(f"The back end's server could not be started: {error.strerror}.") from error
        self._started_at = time.monotonic()
        try:
            wait_until_ready(self.client, self._is_alive, self._context.is_canceled, READY_SECONDS)
        except BackendError as error:
            self.stop()
            raise BackendError(f"{error} {read_last_log_line(self._context.log)}".rstrip()) from error

    def restart(self) -> None:
        """Restart it if it has died. Raise `BackendError` after too many restarts."""
        with self._lock:
            if self._is_alive() or self._context.is_canceled():
                return
            is_stable = time.monotonic() - self._started_at > STABLE_SECONDS
            self._restarts = 1 if is_stable else self._restarts + 1
            if self._restarts > MAX_RESTARTS:
                raise BackendError(f"The back end's server keeps crashing. {read_last_log_line(self._context.log)}")
            self.stop()
            self.start()

    def stop(self) -> None:
        """Stop its process group: SIGTERM, then SIGKILL."""
        process = self._process
        if process is None:
            return
        for number in (signal.SIGTERM, signal.SIGKILL):
            with suppress(ProcessLookupError):
                os.killpg(process.pid, number)
            with suppress(subprocess.TimeoutExpired):
                process.wait(STOP_SECONDS)

    def _is_alive(self) -> bool:
        return self._process is not None and self._process.poll() is None


@contextmanager
def run_server(
    build_command: Callable[[int], Sequence[str]], model: str, context: BackendContext, title: str
) -> Iterator[EndpointClient]:
    """Run a server for the duration of the block, and yield a client of it."""
    server = BackendServer(build_command, model, context, title)
    try:
        server.start()
        yield server.client
    finally:
        server.stop()
        server.client.close()


def check_model_name(model: str, revision: str) -> None:
    """Raise `BackendError` for a name that a command line would take for a flag."""
    if model.startswith("-") or revision.startswith("-"):
        raise BackendError(f"{model} {revision} is not a model's name. Nothing was started.")


def read_last_log_line(log: Path) -> str:
    """Return a sentence with the last line of the log, or "" for an empty log."""
    with suppress(OSError):
        lines = log.read_bytes()[-TAIL_BYTES:].decode(errors="replace").strip().splitlines()
        if lines:
            return f"Its last output: {lines[-1].strip()}"
    return ""
