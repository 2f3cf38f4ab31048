"""One job, from the lease to the wiped folder."""

from __future__ import annotations

import os
import time
import traceback
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import IO, Literal

from trainer import protocol
from trainer.node import heartbeat
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
from trainer.node.console import say
from trainer.node.downloads import download_file
from trainer.node.job_handlers import JOB_HANDLERS
from trainer.node.log_sender import LogSender, OutputCapture
from trainer.node.outcome import JobFailedError, JobInterruptedError, JobOutcome
from trainer.node.signature import UntrustedOrderError, verify_order
from trainer.node.slot_cleanup import MARK_VARIABLE, build_mark
from trainer.node.slot_context import SlotContext
from trainer.node.stop_signal import SponsorSignal, StopLevel, StopSignal
from trainer.node.workspace import Workspace
from trainer.sandbox import SandboxDriver, SandboxError, SandboxProcess, SandboxSpec
from trainer.sandbox.safe_files import UnsafeFileError, open_file, parse_relative_path, sanitize_line

Phase = Literal["preparing", "running", "uploading"]
LOOK_SECONDS = 0.1
GRACE_SECONDS = 120
"""What a job that was asked to finish may take for its last checkpoint."""
REASON = 500
STOPPED = (130, 137, 143)
"""Exit codes of a process that did as it was asked to, or was killed."""


class Job:
    """What a kind of job works with."""

    def __init__(
        self, place: SlotContext, spec: protocol.JobSpec, lease: protocol.Lease, client: SiteClient, wishes: StopSignal
    ) -> None:
        self.place = place
        self.spec = spec
        self.client = client
        self.wishes = wishes
        self.lease = lease.lease
        self.workspace = Workspace(place.home, lease.lease)
        self.phase: Phase = "preparing"
        self._ran: list[SandboxProcess] = []
        """What the job is about, in contrast to what prepares it."""
        self._began: float | None = None
        self._metered = 0.0

    @property
    def seconds(self) -> float:
        """Wall time of the job's own processes so far, and of what else is `metered`."""
        now = time.monotonic()
        return sum(process.seconds for process in self._ran) + self._metered + (now - (self._began or now))

    @contextmanager
    def metered(self) -> Iterator[None]:
        """What happens in here is what the job is about, though it is no process of ours."""
        self.phase, self._began = "running", time.monotonic()
        try:
            yield
        finally:
            self._metered, self._began = self.seconds - sum(process.seconds for process in self._ran), None
            self.phase = "uploading"

    def heartbeat(self) -> protocol.Heartbeat:
        place = self.place
        running = self.phase == "running" and self.seconds > 0
        place.vitals.watch(place.lane.number, place.lane.uuids, running)
        return protocol.Heartbeat(phase=self.phase, seconds=self.seconds, health=place.vitals.health())

    def say(self, sentence: str) -> None:
        say(f"Job {self.spec.job}: {sentence}")

    def fetch(self, file: protocol.FileRef, target: Path) -> None:
        """Download a file by its hash. Raise `Failed` if the server's bytes are others."""
        target.parent.mkdir(parents=True, exist_ok=True)
        try:
            download_file(self.client, f"/leases/{self.lease}/blobs/{file.sha256}", file, target, self.unwanted)
        except DamagedFileError as error:
            raise JobFailedError(f"{error} Nothing was run.") from error

    def fetch_into(self, files: Iterable[protocol.FileRef], folder: Path) -> None:
        """Download files to their places in a folder."""
        for file in files:
            try:
                self.fetch(file, folder / parse_relative_path(file.path))
            except UnsafeFileError as error:
                raise JobFailedError(f"{error} Nothing was run.") from error

    def unpack(self, below: str = "trainer/models", most_bytes: int = ENTRY_BYTES) -> None:
        """Make the workspace's `release` and `source`; the entry brings files `below` that folder and nothing else.

        Raise `Failed` if an archive is not what it must be.
        """
        release = self.place.blobs.get(self.spec.release, self.fetch)
        entry = self.place.blobs.get(self.spec.entry, self.fetch) if self.spec.entry else None
        self.check_wishes()
        try:
            unpack_archive(release, self.workspace.release, "trainer", RELEASE_BYTES)
            unpack_archive(release, self.workspace.source, "trainer", RELEASE_BYTES)
        except ArchiveError as error:
            raise JobFailedError(f"{error} Nothing was run.") from error
        if entry is not None:
            try:
                unpack_archive(entry, self.workspace.source, below, most_bytes)
            except ArchiveError as error:
                raise JobFailedError(f"{error} Nothing was run.", "model") from error

    def unwanted(self) -> bool:
        return self.wishes.stop > StopLevel.NONE or bool(self.wishes.trouble)

    def check_wishes(self) -> None:
        """Raise `Interrupted` if somebody wishes the job to stop, `Failed` if a side loop cannot go on."""
        if self.wishes.stop > StopLevel.NONE:
            raise JobInterruptedError
        if self.wishes.trouble:
            raise JobFailedError(self.wishes.trouble)

    def run(
        self,
        driver: SandboxDriver,
        box: SandboxSpec,
        loops: Sequence[BackgroundSender] = (),
        phase: Phase = "running",
        output: Path | None = None,
    ) -> SandboxProcess:
        """Run a process to its end, its output to the log, and obey the wishes; return it when all is sent.

        `output`: where its standard output goes instead of the log. Raise `Interrupted` or `Failed` if it was ended
        before its time; after "finish" it has had time for its last checkpoint, and that has been sent.
        """
        self.check_wishes()
        marked = {**box.environment, MARK_VARIABLE: build_mark(self.place.home, self.lease)}
        process, pipe = start_process(driver, replace(box, environment=marked), output)
        self.phase = phase
        if phase == "running":
            self._ran.append(process)
        pump = OutputCapture(pipe, self.workspace.output)
        pump.start()
        for loop in loops:
            loop.start()
        try:
            self._watch(process, can_finish=bool(loops))
        finally:
            process.kill()
            pump.close()
            self.phase = "uploading" if phase == "running" else phase
            for loop in loops:
                loop.close()
        self._check_ending(process)
        return process

    def _check_ending(self, process: SandboxProcess) -> None:
        if self.wishes.trouble:
            raise JobFailedError(self.wishes.trouble)
        if self.wishes.stop >= StopLevel.RELEASE or (
            self.wishes.stop is StopLevel.FINISH and process.poll() in STOPPED
        ):
            raise JobInterruptedError

    def _watch(self, process: SandboxProcess, can_finish: bool) -> None:
        """Return when the process has ended, or is to be killed."""
        deadline = None
        while process.poll() is None:
            stop = self.wishes.stop
            if stop >= StopLevel.RELEASE or self.wishes.trouble or (stop is StopLevel.FINISH and not can_finish):
                return
            if stop is StopLevel.FINISH and deadline is None:
                self.say("asked to keep a checkpoint and stop.")
                process.terminate()
                deadline = time.monotonic() + GRACE_SECONDS
            if deadline is not None and time.monotonic() > deadline:
                return
            process.wait(LOOK_SECONDS)


def start_process(driver: SandboxDriver, box: SandboxSpec, output: Path | None) -> tuple[SandboxProcess, IO[bytes]]:
    """Start a box; return it with the reading end of its output: both streams, or errors alone beside `output`."""
    reading, writing = os.pipe()
    try:
        if output is None:
            return driver.start(box, stdout=writing, stderr=writing), os.fdopen(reading, "rb")
        with output.open("wb") as file:
            return driver.start(box, stdout=file, stderr=writing), os.fdopen(reading, "rb")
    except BaseException:
        os.close(reading)
        raise
    finally:
        os.close(writing)


def run_job(place: SlotContext, lease: protocol.Lease, client: SiteClient, sponsor: SponsorSignal) -> bool:
    """Do one job. Return whether it could be worked on: False means that the node should pause before the next."""
    wishes = StopSignal(sponsor)
    client = client.on_behalf(lease.token)
    try:
        spec = verify_order(lease, place.identity)
    except UntrustedOrderError as error:
        say(str(error), "bold red")
        finish_lease(client, lease.lease, JobOutcome("failed", str(error)), wishes)
        return False
    job = Job(place, spec, lease, client, wishes)
    beat = heartbeat.HeartbeatLoop(client, lease.lease, lease.seconds, job.heartbeat, wishes)
    beat.start()
    told = False
    try:
        outcome = run_handler(job)
        job.phase = "uploading"
        told = report_outcome(job, outcome)
    finally:
        beat.end()
        with suppress(OSError):  # looked at again, and told, before the next job (`reset`)
            job.workspace.wipe(remember=not told and wishes.by_server is not StopLevel.LOST)
    return outcome.outcome == "done" or outcome.cause == "model" or wishes.stop > StopLevel.NONE


def run_handler(job: Job) -> JobOutcome:
    """Run the job's kind and put whatever happens into words."""
    kind = job.spec.order.kind
    log = LogSender(job.client, job.lease, job.workspace.output, job.wishes)
    try:
        job.workspace.create()
        log.start()
        job.say(f"{JOB_HANDLERS[kind].DOING} (attempt {job.spec.attempt}).")
        return JOB_HANDLERS[kind].run(job)
    except (JobInterruptedError, GaveUpError):
        return describe_interruption(job.wishes)
    except JobFailedError as error:
        return JobOutcome("failed", str(error), error.cause)
    except RequestRefusedError as error:
        stop_on_refusal(error, job.wishes)
        return (
            describe_interruption(job.wishes)
            if job.wishes.by_server is StopLevel.LOST
            else JobOutcome("failed", error.detail)
        )
    except SandboxError as error:
        return JobOutcome("failed", str(error))
    except OSError as error:
        traceback.print_exc()
        return JobOutcome("failed", f"The node could not go on: {error.strerror or type(error).__name__}.")
    except Exception as error:
        traceback.print_exc()
        return JobOutcome("failed", f"The node's agent stumbled ({type(error).__name__}).")
    finally:
        log.close()


def describe_interruption(wishes: StopSignal) -> JobOutcome:
    if wishes.trouble and wishes.stop is StopLevel.NONE:
        return JobOutcome("failed", wishes.trouble)
    by_server = wishes.by_server >= wishes.sponsor.stop
    return JobOutcome("released", wishes.reason if by_server else "The sponsor needs the machine.")


def report_outcome(job: Job, outcome: JobOutcome) -> bool:
    """Tell the server how the job ended; return whether it knows."""
    files: tuple[protocol.FileRef, ...] = ()
    if job.wishes.by_server is StopLevel.LOST:
        say(f"Job {job.spec.job}: this node has lost it: {job.wishes.reason} Going on.", "yellow")
        return False
    with suppress(GaveUpError, RequestRefusedError):
        files = upload_result_files(job, outcome.files)
    told = finish_lease(job.client, job.lease, outcome, job.wishes, files, job.seconds)
    words = {"done": "done.", "released": f"handed back. {outcome.reason}", "failed": f"failed. {outcome.reason}"}
    say(f"Job {job.spec.job}: {words[outcome.outcome]}", "green" if outcome.outcome == "done" else "yellow")
    return told


def upload_result_files(job: Job, wanted: Iterable[str]) -> tuple[protocol.FileRef, ...]:
    """Upload those of the small files that are there."""
    with ExitStack() as opened:
        files = {}
        for name in wanted:
            with suppress(OSError, UnsafeFileError):
                content = opened.enter_context(open_file(job.workspace.out, name))
                files[build_file_ref(name, content)] = content
        if files:
            upload_missing_files(job.client, f"/leases/{job.lease}", files, job.wishes)
        return tuple(files)


def finish_lease(
    client: SiteClient,
    lease: int,
    outcome: JobOutcome,
    wishes: StopSignal,
    files: tuple[protocol.FileRef, ...] = (),
    seconds: float | None = None,
) -> bool:
    """Say how the lease ends; return whether the server knows. `seconds`: as in a heartbeat."""
    message = protocol.FinishLease(
        outcome=outcome.outcome,
        cause=outcome.cause,
        reason=sanitize_line(outcome.reason, REASON),
        result=outcome.result,
        files=files,
        seconds=seconds,
    )
    try:
        retry_until_reachable(lambda: client.tell(f"/leases/{lease}/finish", message), wishes.over)
    except RequestRefusedError as error:
        say(f"The server did not take the end of lease {lease}: {error.detail}", "yellow")
        return True  # it knows; there is nothing more to say
    except GaveUpError:
        return False
    return True
