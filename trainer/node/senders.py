"""The threads that send a job's heartbeat, log and metrics while it runs.

Unsent data stays on disk, so a server outage costs no memory and loses nothing.
"""

from __future__ import annotations

import codecs
import random
import threading
from collections.abc import Callable
from typing import Any

from trainer.node.client import (
    GaveUpError,
    RequestRefusedError,
    ServerUnreachableError,
    SiteClient,
    retry_until_reachable,
)
from trainer.node.console import log
from trainer.node.job import Job
from trainer.node.stop_signal import RELEASE_SECONDS, StopLevel, StopSignal
from trainer.protocol import Acknowledgment, Heartbeat, HeartbeatReply, LogChunk, Message, MetricsBatch
from trainer.sandbox.safe_files import UnsafeFileError, open_file, parse_json_object

LEASE_LOST_STATUS = 409
IDLE_SECONDS = 0.5


class BackgroundSender(threading.Thread):
    """Subclasses send one item in `send_next` and return False if there was none."""

    def __init__(self, client: SiteClient, lease: int, stop_signal: StopSignal, name: str) -> None:
        """`name`: what it sends."""
        super().__init__(name=name, daemon=True)
        self.client, self.stop_signal = client, stop_signal
        self.lease_path = f"/leases/{lease}"
        self._closing = threading.Event()

    def send_next(self) -> bool:
        raise NotImplementedError

    def post(self, path: str, message: Message) -> None:
        """Post a message below the lease's path until the server acknowledges it; raise `GaveUpError`."""
        path = f"{self.lease_path}/{path}"
        retry_until_reachable(lambda: self.client.post(path, message, Acknowledgment), self.stop_signal.has_given_up)

    def close(self) -> None:
        """Send the remaining items and end the thread, or give up."""
        self._closing.set()
        while self.is_alive() and not self.stop_signal.should_drop_uploads():
            self.join(0.1)
        self.join(RELEASE_SECONDS)  # a request in flight may still arrive

    def run(self) -> None:
        try:
            while not self.stop_signal.should_drop_uploads():
                is_closing = self._closing.is_set()  # read first, so that earlier items are still seen
                if self.send_next():
                    continue
                if is_closing:
                    return
                self._closing.wait(IDLE_SECONDS)
        except RequestRefusedError as error:
            stop_on_refusal(error, self.stop_signal)
        except GaveUpError:
            return
        except Exception as error:
            log.exception("The %s could not be sent.", self.name)
            self.stop_signal.error = f"The node's agent could not send the {self.name} ({type(error).__name__})."


def stop_on_refusal(error: RequestRefusedError, stop_signal: StopSignal) -> None:
    """End the job: silently if the lease is lost, else with the server's reason."""
    if error.status == LEASE_LOST_STATUS:
        stop_signal.stop_by_server(StopLevel.LOST, error.detail)
    else:
        stop_signal.error = stop_signal.error or error.detail


STOPS = {"": StopLevel.NONE, "finish": StopLevel.FINISH, "cancel": StopLevel.CANCEL}


class HeartbeatLoop(threading.Thread):
    def __init__(
        self,
        client: SiteClient,
        lease: int,
        lease_seconds: float,
        build_heartbeat: Callable[[], Heartbeat],
        stop_signal: StopSignal,
    ) -> None:
        """`lease_seconds`: how long the lease lasts without a heartbeat."""
        super().__init__(name="heartbeat", daemon=True)
        self._client = client
        self._path = f"/leases/{lease}/heartbeat"
        self._interval = max(lease_seconds / 4, 0.05)
        self._build_heartbeat = build_heartbeat
        self._stop_signal = stop_signal
        self._ended = threading.Event()

    def end(self) -> None:
        self._ended.set()
        self.join()

    def run(self) -> None:
        is_silent = False
        while not self._ended.is_set() and self._stop_signal.server_level is not StopLevel.LOST:
            try:
                self._send()
                if is_silent:
                    log.info("The server responds again.")
                is_silent = False
            except ServerUnreachableError as error:
                if not is_silent:
                    log.warning("%s The job continues; unsent data is kept until the server responds.", error)
                is_silent = True
            except RequestRefusedError as error:
                stop_on_refusal(error, self._stop_signal)
                return
            # A lost heartbeat is repeated sooner.
            self._ended.wait(self._interval * (random.uniform(0.2, 0.6) if is_silent else random.uniform(0.9, 1)))

    def _send(self) -> None:
        timeout = max(self._interval * 2, 5)
        reply = self._client.post(self._path, self._build_heartbeat(), HeartbeatReply, timeout)
        if reply.stop:
            self._stop_signal.stop_by_server(STOPS[reply.stop], reply.reason)


LOG_BYTES = 48_000


class LogSender(BackgroundSender):
    def __init__(self, job: Job) -> None:
        super().__init__(job.client, job.lease, job.stop_signal, "log")
        self._file = job.workspace.output
        self._offset = 0

    def send_next(self) -> bool:
        if not self._file.exists():
            return False
        with self._file.open("rb") as file:
            file.seek(self._offset)
            text = decode_complete_characters(file.read(LOG_BYTES))
        if not text:
            return False
        self.post("log", LogChunk(offset=self._offset, text=text))
        self._offset += len(text.encode())
        return True


def decode_complete_characters(data: bytes) -> str:
    """Decode UTF-8 without a last character that is cut off; it comes with the next chunk."""
    return codecs.getincrementaldecoder("utf-8")().decode(data)


METRICS_FILE = "metrics.jsonl"
BATCH_ROWS = 500
BATCH_BYTES = 512_000
LINE_BYTES = 32_000  # longer lines are skipped
METRICS_BYTES = 64 << 20  # lines beyond this are skipped


class MetricsSender(BackgroundSender):
    def __init__(self, job: Job) -> None:
        super().__init__(job.client, job.lease, job.stop_signal, "metrics")
        self._out = job.workspace.out
        self._offset = self._sequence = 0

    def send_next(self) -> bool:
        lines = self._read_lines()
        if not lines:
            return False
        rows = tuple(row for line in lines if (row := parse_metrics_row(line)) is not None)
        if rows:
            self.post("metrics", MetricsBatch(sequence=self._sequence + 1, rows=rows))
            self._sequence += 1
        self._offset += sum(map(len, lines))
        return True

    def _read_lines(self) -> list[bytes]:
        """Return the next complete lines; a line that the job is still writing waits."""
        if self._offset > METRICS_BYTES:
            return []
        try:
            with open_file(self._out, METRICS_FILE) as file:
                file.seek(self._offset)
                data = file.read(BATCH_BYTES)
        except (OSError, UnsafeFileError):
            return []
        lines = data.splitlines(keepends=True)[:BATCH_ROWS]
        if len(data) == BATCH_BYTES and len(lines) == 1:
            return lines  # a line longer than a batch is skipped in pieces, none of which is an object
        return lines if not lines or lines[-1].endswith(b"\n") else lines[:-1]


def parse_metrics_row(line: bytes) -> dict[str, Any] | None:
    row = parse_json_object(line, LINE_BYTES)
    return row if row is not None and isinstance(row.get("kind"), str) else None
