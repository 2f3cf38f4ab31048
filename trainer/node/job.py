"""A leased job: its order, files and processes, as a handler sees them."""

from __future__ import annotations

import codecs
import os
import re
import threading
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import IO, Literal, Protocol

from trainer import protocol
from trainer.node.archives import ENTRY_BYTES, RELEASE_BYTES, ArchiveError, unpack_archive
from trainer.node.blobs import BlobCache
from trainer.node.client import SiteClient
from trainer.node.console import log
from trainer.node.outcome import JobFailedError, JobInterruptedError
from trainer.node.slot_cleanup import MARK_VARIABLE, build_mark
from trainer.node.slots import SlotContext
from trainer.node.stop_signal import StopLevel, StopSignal
from trainer.node.transfers import download_file
from trainer.node.workspace import Workspace
from trainer.protocol.lease import PROGRESS_FACTOR
from trainer.sandbox import ResourceLimits, SandboxDriver, SandboxProcess, SandboxSpec
from trainer.sandbox.safe_files import parse_relative_path

Phase = Literal["preparing", "running", "uploading"]
CHECK_SECONDS = 0.1
GRACE_SECONDS = 120  # how long a job that should finish may take for its last checkpoint
STOPPED_CODES = (130, 137, 143)  # exit codes of a process that was interrupted or killed


class Sender(Protocol):
    """A thread that sends what a job writes while it runs (`trainer.node.senders`)."""

    def start(self) -> None: ...

    def close(self) -> None:
        """Send what is left, or give up."""


class Job:
    """A leased job, as its handler sees it."""

    def __init__(
        self,
        context: SlotContext,
        spec: protocol.JobSpec,
        lease: protocol.Lease,
        client: SiteClient,
        stop_signal: StopSignal,
    ) -> None:
        self.context = context
        self.spec = spec
        self.limits = ResourceLimits(**spec.limits.model_dump())
        self.client = client
        self.stop_signal = stop_signal
        self.lease = lease.lease
        self.workspace = Workspace(context.home, lease.lease)
        self.phase: Phase = "preparing"
        self._processes: list[SandboxProcess] = []  # of the phase "running": the job itself, not its preparation
        self._block_started_at: float | None = None
        self._block_seconds = 0.0

    @property
    def seconds(self) -> float:
        """Wall time so far of the job's own processes and of blocks in `measure_time`."""
        now = time.monotonic()
        process_seconds = sum(process.seconds for process in self._processes)
        return process_seconds + self._block_seconds + (now - (self._block_started_at or now))

    @contextmanager
    def measure_time(self) -> Iterator[None]:
        """Count the time of a block that is the job itself but starts no process."""
        self.phase, self._block_started_at = "running", time.monotonic()
        try:
            yield
        finally:
            self._block_seconds += time.monotonic() - self._block_started_at
            self._block_started_at = None
            self.phase = "uploading"

    def build_heartbeat(self) -> protocol.Heartbeat:
        monitor, slot = self.context.gpu_monitor, self.context.slot
        monitor.update_idle(slot.number, slot.uuids, is_running=self.phase == "running" and self.seconds > 0)
        return protocol.Heartbeat(
            phase=self.phase, seconds=self.seconds, health=monitor.build_health(monitor.find_problem(slot.uuids))
        )

    def log(self, message: str) -> None:
        log.info("Job %s: %s", self.spec.job, message)

    def download(self, file: protocol.FileRef, target: Path) -> None:
        """Download a file by its hash; raise `DamagedFileError` if the server sends other bytes."""
        target.parent.mkdir(parents=True, exist_ok=True)
        path = f"/leases/{self.lease}/blobs/{file.sha256}"
        download_file(self.client, path, file, target, self.stop_signal.is_stopping)

    def download_all(self, files: Iterable[protocol.FileRef], folder: Path) -> None:
        """Download files to their relative paths in a folder; raise `UnsafeFileError` for a path outside it."""
        for file in files:
            self.download(file, folder / parse_relative_path(file.path))

    def download_to_cache(self, cache: BlobCache, file: protocol.FileRef) -> Path:
        """Return a file of a cache, which downloads it unless it is there."""
        return cache.get(file, self.download, self.check_stop)

    def unpack_source(self, entry_folder: str = "trainer/models", max_bytes: int = ENTRY_BYTES) -> None:
        """Unpack into the workspace's `release` and `source`; the entry may only have files in `entry_folder`.

        Raise `ArchiveError` if the release is refused, `JobFailedError` if the entry is.
        """
        release = self.download_to_cache(self.context.blobs, self.spec.release)
        entry = self.download_to_cache(self.context.blobs, self.spec.entry) if self.spec.entry else None
        self.check_stop()
        unpack_archive(release, self.workspace.release, "trainer", RELEASE_BYTES)
        unpack_archive(release, self.workspace.source, "trainer", RELEASE_BYTES)
        if entry is not None:
            try:
                unpack_archive(entry, self.workspace.source, entry_folder, max_bytes)
            except ArchiveError as error:
                raise JobFailedError(f"{error} Nothing was run.", "model") from error

    def check_stop(self) -> None:
        """Raise `JobInterruptedError` on a stop signal, `JobFailedError` if a background sender failed."""
        if self.stop_signal.level > StopLevel.NONE:
            raise JobInterruptedError
        if self.stop_signal.error:
            raise JobFailedError(self.stop_signal.error)

    def run_process(
        self,
        driver: SandboxDriver,
        spec: SandboxSpec,
        senders: Sequence[Sender] = (),
        phase: Phase = "running",
        output: Path | None = None,
        progress: Path | None = None,
    ) -> SandboxProcess:
        """Run a process to its end, or until a stop signal; return it when everything is sent.

        Its output goes to the job's log; with `output`, standard output goes to that file. Raise `JobInterruptedError`
        or `JobFailedError` if it was ended early. With `senders`, FINISH leaves it time for a last checkpoint. Its
        limit of wall time grows with the file `progress`, which only the site's own code may write.
        """
        self.check_stop()
        marked = {**spec.environment, MARK_VARIABLE: build_mark(self.context.home, self.lease)}
        process, pipe = start_process(driver, replace(spec, environment=marked), output)
        self.phase = phase
        if phase == "running":
            self._processes.append(process)
        capture = OutputCapture(pipe, self.workspace.output)
        capture.start()
        for sender in senders:
            sender.start()
        try:
            self._wait_for_process(process, can_finish=bool(senders), progress=progress)
        finally:
            process.kill()
            capture.join(5)
            self.phase = "uploading" if phase == "running" else phase
            for sender in senders:
                sender.close()
        self._check_interrupted(process)
        return process

    def _check_interrupted(self, process: SandboxProcess) -> None:
        level = self.stop_signal.level
        if self.stop_signal.error:
            raise JobFailedError(self.stop_signal.error)
        if level >= StopLevel.RELEASE or (level is StopLevel.FINISH and process.poll() in STOPPED_CODES):
            raise JobInterruptedError

    def _wait_for_process(self, process: SandboxProcess, can_finish: bool, progress: Path | None) -> None:
        """Return when the process has ended or should be killed."""
        deadline, size = None, get_file_size(progress)
        while process.poll() is None:
            if (grown := get_file_size(progress)) > size:
                size = grown
                process.allow_seconds(PROGRESS_FACTOR * process.seconds)
            level = self.stop_signal.level
            if level >= StopLevel.RELEASE or self.stop_signal.error:
                return
            if level is StopLevel.FINISH and not can_finish:
                return
            if level is StopLevel.FINISH and deadline is None:
                self.log("saving a checkpoint before it stops.")
                process.terminate()
                deadline = time.monotonic() + GRACE_SECONDS
            if deadline is not None and time.monotonic() > deadline:
                return
            process.wait(CHECK_SECONDS)


def get_file_size(file: Path | None) -> int:
    """Return a file's size in bytes; 0 without one."""
    try:
        return file.lstat().st_size if file is not None else 0
    except OSError:
        return 0


def start_process(driver: SandboxDriver, spec: SandboxSpec, output: Path | None) -> tuple[SandboxProcess, IO[bytes]]:
    """Start a sandbox; return it and a pipe with its output (only its standard error if `output` is given)."""
    read_end, write_end = os.pipe()
    try:
        if output is None:
            return driver.start(spec, stdout=write_end, stderr=write_end), os.fdopen(read_end, "rb")
        with output.open("wb") as file:
            return driver.start(spec, stdout=file, stderr=write_end), os.fdopen(read_end, "rb")
    except BaseException:
        os.close(read_end)
        raise
    finally:
        os.close(write_end)


OUTPUT_BYTES = 2 << 20  # kept of the output of one lease; the rest is dropped
TRUNCATION_NOTE = f"\n[the output beyond {OUTPUT_BYTES >> 20} MiB is not kept]\n"
CONTROL_CHARACTERS = re.compile(r"\x1b\[[0-9;?]*[ -/]*[@-~]|[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f]")
"""Terminal escape sequences, and characters that a page or a database cannot hold."""


class OutputCapture(threading.Thread):
    """Reads a pipe until no process holds it any more, and appends readable text to `file`."""

    def __init__(self, pipe: IO[bytes], file: Path) -> None:
        super().__init__(name="output capture", daemon=True)
        self._pipe = pipe
        self._file = file
        self._bytes_left = OUTPUT_BYTES

    def run(self) -> None:
        decoder = codecs.getincrementaldecoder("utf-8")("replace")
        with self._pipe, self._file.open("ab", buffering=0) as out:
            while data := self._pipe.read1(65536):  # type: ignore[attr-defined]
                self._write(decoder.decode(data), out)
            self._write(decoder.decode(b"", final=True), out)

    def _write(self, text: str, out: IO[bytes]) -> None:
        if self._bytes_left <= 0:
            return
        data = CONTROL_CHARACTERS.sub("", text.replace("\r\n", "\n").replace("\r", "\n")).encode()
        self._bytes_left -= len(data)
        if self._bytes_left <= 0:
            data = data[: self._bytes_left].decode(errors="ignore").encode() + TRUNCATION_NOTE.encode()
        out.write(data)
