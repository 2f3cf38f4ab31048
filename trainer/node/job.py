"""One job, from the lease to the removed folder."""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import IO, Literal

from trainer import protocol
from trainer.node.archives import ENTRY_BYTES, RELEASE_BYTES, ArchiveError, unpack_archive
from trainer.node.background_sender import BackgroundSender, stop_on_refusal
from trainer.node.checkpoint_sender import upload_missing_files
from trainer.node.client import (
    DamagedFileError,
    GaveUpError,
    RequestRefusedError,
    SiteClient,
    build_file_ref,
    retry_until_reachable,
)
from trainer.node.console import log
from trainer.node.downloads import download_file
from trainer.node.heartbeat import HeartbeatLoop
from trainer.node.job_handlers import JOB_HANDLERS, REPHRASE_KIND
from trainer.node.log_sender import LogSender, OutputCapture
from trainer.node.outcome import JobFailedError, JobInterruptedError, JobOutcome
from trainer.node.signature import UntrustedOrderError, verify_order
from trainer.node.slot_cleanup import MARK_VARIABLE, build_mark
from trainer.node.slot_context import SlotContext
from trainer.node.stop_signal import SponsorSignal, StopLevel, StopSignal
from trainer.node.workspace import Workspace
from trainer.sandbox import ResourceLimits, SandboxDriver, SandboxError, SandboxProcess, SandboxSpec
from trainer.sandbox.safe_files import UnsafeFileError, open_file, parse_relative_path, sanitize_line

Phase = Literal["preparing", "running", "uploading"]
CHECK_SECONDS = 0.1
GRACE_SECONDS = 120  # how long a job that should finish may take for its last checkpoint
REASON_LENGTH = 500
STOPPED_CODES = (130, 137, 143)  # exit codes of a process that was interrupted or killed


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
        return protocol.Heartbeat(phase=self.phase, seconds=self.seconds, health=monitor.build_health())

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

    def unpack_source(self, entry_folder: str = "trainer/models", max_bytes: int = ENTRY_BYTES) -> None:
        """Unpack into the workspace's `release` and `source`; the entry may only have files in `entry_folder`.

        Raise `ArchiveError` if the release is refused, `JobFailedError` if the entry is.
        """
        release = self.context.blobs.get(self.spec.release, self.download)
        entry = self.context.blobs.get(self.spec.entry, self.download) if self.spec.entry else None
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
        senders: Sequence[BackgroundSender] = (),
        phase: Phase = "running",
        output: Path | None = None,
    ) -> SandboxProcess:
        """Run a process to its end, or until a stop signal; return it when everything is sent.

        Its output goes to the job's log; with `output`, standard output goes to that file. Raise `JobInterruptedError`
        or `JobFailedError` if it was ended early. With `senders`, FINISH leaves it time for a last checkpoint.
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
            self._wait_for_process(process, can_finish=bool(senders))
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

    def _wait_for_process(self, process: SandboxProcess, can_finish: bool) -> None:
        """Return when the process has ended or should be killed."""
        deadline = None
        while process.poll() is None:
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


def run_job(context: SlotContext, lease: protocol.Lease, client: SiteClient, sponsor: SponsorSignal) -> bool:
    """Run one job; return False if this node could not work on it and should pause before the next."""
    stop_signal = StopSignal(sponsor)
    client = client.with_token(lease.token)
    try:
        spec = verify_order(lease, context.identity)
    except UntrustedOrderError as error:
        log.error(str(error))
        finish_lease(client, lease.lease, JobOutcome("failed", str(error)), stop_signal)
        return False
    job = Job(context, spec, lease, client, stop_signal)
    heartbeat = HeartbeatLoop(client, lease.lease, lease.seconds, job.build_heartbeat, stop_signal)
    heartbeat.start()
    is_reported = False
    try:
        outcome = run_handler(job)
        job.phase = "uploading"
        is_reported = report_outcome(job, outcome)
    finally:
        heartbeat.end()
        with suppress(OSError):  # checked again, and reported, before the next job (`slot_cleanup`)
            is_known = is_reported or stop_signal.server_level is StopLevel.LOST
            job.workspace.remove(keep_folder=not is_known)
        context.quota.release(lease.lease)
    return outcome.outcome == "done" or outcome.cause == "model" or stop_signal.level > StopLevel.NONE


def run_handler(job: Job) -> JobOutcome:
    """Run the handler of the job's kind and turn every error into an outcome."""
    handler = JOB_HANDLERS[job.spec.order.kind]
    log_sender = LogSender(job)
    try:
        job.workspace.create()
        log_sender.start()
        if job.spec.order.kind != REPHRASE_KIND:  # it downloads models to other folders
            job.context.quota.reserve(job.lease, int(job.limits.disk_bytes))
        job.log(f"{handler.ACTIVITY} (attempt {job.spec.attempt}).")
        return handler.run(job)
    except (JobInterruptedError, GaveUpError):
        return describe_interruption(job.stop_signal)
    except JobFailedError as error:
        return JobOutcome("failed", str(error), error.cause)
    except (ArchiveError, DamagedFileError, UnsafeFileError) as error:  # in the order's files: nothing has started
        return JobOutcome("failed", f"{error} Nothing was run.")
    except RequestRefusedError as error:
        stop_on_refusal(error, job.stop_signal)
        is_lost = job.stop_signal.server_level is StopLevel.LOST
        return describe_interruption(job.stop_signal) if is_lost else JobOutcome("failed", error.detail)
    except SandboxError as error:
        return JobOutcome("failed", str(error))
    except OSError as error:
        log.exception("Job %s failed.", job.spec.job)
        return JobOutcome("failed", f"The node failed: {error.strerror or type(error).__name__}.")
    except Exception as error:
        log.exception("Job %s failed.", job.spec.job)
        return JobOutcome("failed", f"The node's agent failed ({type(error).__name__}).")
    finally:
        log_sender.close()


def describe_interruption(stop_signal: StopSignal) -> JobOutcome:
    if stop_signal.error and stop_signal.level is StopLevel.NONE:
        return JobOutcome("failed", stop_signal.error)
    is_by_server = stop_signal.server_level >= stop_signal.sponsor.level
    return JobOutcome("released", stop_signal.reason if is_by_server else "The sponsor needs the machine.")


def report_outcome(job: Job, outcome: JobOutcome) -> bool:
    """Report the outcome to the server and the sponsor; return whether the server knows it."""
    files: tuple[protocol.FileRef, ...] = ()
    if job.stop_signal.server_level is StopLevel.LOST:
        log.warning("Job %s: the lease is lost: %s", job.spec.job, job.stop_signal.reason)
        return False
    with suppress(GaveUpError, RequestRefusedError):
        files = upload_result_files(job, outcome.files)
    is_reported = finish_lease(job.client, job.lease, outcome, job.stop_signal, files, job.seconds)
    if outcome.outcome == "done":
        job.log("done.")
    else:
        log.warning("Job %s: %s. %s", job.spec.job, outcome.outcome, outcome.reason)
    return is_reported


def upload_result_files(job: Job, names: Iterable[str]) -> tuple[protocol.FileRef, ...]:
    """Upload those of the small files that exist."""
    with ExitStack() as stack:
        files = {}
        for name in names:
            with suppress(OSError, UnsafeFileError):
                content = stack.enter_context(open_file(job.workspace.out, name))
                files[build_file_ref(name, content)] = content
        if files:
            upload_missing_files(job.client, f"/leases/{job.lease}", files, job.stop_signal)
        return tuple(files)


def finish_lease(
    client: SiteClient,
    lease: int,
    outcome: JobOutcome,
    stop_signal: StopSignal,
    files: tuple[protocol.FileRef, ...] = (),
    seconds: float | None = None,
) -> bool:
    """Send how the lease ends; return whether the server knows. `seconds`: as in a heartbeat."""
    message = protocol.FinishLease(
        outcome=outcome.outcome,
        cause=outcome.cause,
        reason=sanitize_line(outcome.reason, REASON_LENGTH),
        result=outcome.result,
        files=files,
        seconds=seconds,
    )
    path = f"/leases/{lease}/finish"
    try:
        retry_until_reachable(lambda: client.post_without_reply(path, message), stop_signal.has_given_up)
    except RequestRefusedError as error:
        log.warning("The server rejected the end of lease %s: %s", lease, error.detail)
        return True  # a refusal shows that the server knows
    except GaveUpError:
        return False
    return True
