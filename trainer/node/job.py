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
from trainer.node.checkpoints import send
from trainer.node.client import Client, Damaged, GaveUp, Refused, persistently, reference
from trainer.node.console import say
from trainer.node.courier import Courier, refused
from trainer.node.download import download
from trainer.node.job_handlers import KINDS
from trainer.node.log import LogLoop, Pump
from trainer.node.outcome import Failed, Interrupted, Outcome
from trainer.node.place import Place
from trainer.node.reset import MARK, mark
from trainer.node.signature import Distrusted, verified
from trainer.node.stopping import Sponsor, Stop, Wishes
from trainer.node.unpack import ENTRY_BYTES, RELEASE_BYTES, BadTar, unpack
from trainer.node.workspace import Workspace
from trainer.sandbox import Box, Driver, Process, SandboxError
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
        self, place: Place, spec: protocol.JobSpec, lease: protocol.Lease, client: Client, wishes: Wishes
    ) -> None:
        self.place = place
        self.spec = spec
        self.client = client
        self.wishes = wishes
        self.lease = lease.lease
        self.workspace = Workspace(place.home, lease.lease)
        self.phase: Phase = "preparing"
        self._ran: list[Process] = []
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
            download(self.client, f"/leases/{self.lease}/blobs/{file.sha256}", file, target, self.unwanted)
        except Damaged as error:
            raise Failed(f"{error} Nothing was run.") from error

    def fetch_into(self, files: Iterable[protocol.FileRef], folder: Path) -> None:
        """Download files to their places in a folder."""
        for file in files:
            try:
                self.fetch(file, folder / parse_relative_path(file.path))
            except UnsafeFileError as error:
                raise Failed(f"{error} Nothing was run.") from error

    def unpack(self, below: str = "trainer/models", most_bytes: int = ENTRY_BYTES) -> None:
        """Make the workspace's `release` and `source`; the entry brings files `below` that folder and nothing else.

        Raise `Failed` if an archive is not what it must be.
        """
        release = self.place.blobs.get(self.spec.release, self.fetch)
        entry = self.place.blobs.get(self.spec.entry, self.fetch) if self.spec.entry else None
        self.check_wishes()
        try:
            unpack(release, self.workspace.release, "trainer", RELEASE_BYTES)
            unpack(release, self.workspace.source, "trainer", RELEASE_BYTES)
        except BadTar as error:
            raise Failed(f"{error} Nothing was run.") from error
        if entry is not None:
            try:
                unpack(entry, self.workspace.source, below, most_bytes)
            except BadTar as error:
                raise Failed(f"{error} Nothing was run.", "model") from error

    def unwanted(self) -> bool:
        return self.wishes.stop > Stop.NONE or bool(self.wishes.trouble)

    def check_wishes(self) -> None:
        """Raise `Interrupted` if somebody wishes the job to stop, `Failed` if a side loop cannot go on."""
        if self.wishes.stop > Stop.NONE:
            raise Interrupted
        if self.wishes.trouble:
            raise Failed(self.wishes.trouble)

    def run(
        self,
        driver: Driver,
        box: Box,
        loops: Sequence[Courier] = (),
        phase: Phase = "running",
        output: Path | None = None,
    ) -> Process:
        """Run a process to its end, its output to the log, and obey the wishes; return it when all is sent.

        `output`: where its standard output goes instead of the log. Raise `Interrupted` or `Failed` if it was ended
        before its time; after "finish" it has had time for its last checkpoint, and that has been sent.
        """
        self.check_wishes()
        marked = {**box.environment, MARK: mark(self.place.home, self.lease)}
        process, pipe = start(driver, replace(box, environment=marked), output)
        self.phase = phase
        if phase == "running":
            self._ran.append(process)
        pump = Pump(pipe, self.workspace.output)
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

    def _check_ending(self, process: Process) -> None:
        if self.wishes.trouble:
            raise Failed(self.wishes.trouble)
        if self.wishes.stop >= Stop.RELEASE or (self.wishes.stop is Stop.FINISH and process.poll() in STOPPED):
            raise Interrupted

    def _watch(self, process: Process, can_finish: bool) -> None:
        """Return when the process has ended, or is to be killed."""
        deadline = None
        while process.poll() is None:
            stop = self.wishes.stop
            if stop >= Stop.RELEASE or self.wishes.trouble or (stop is Stop.FINISH and not can_finish):
                return
            if stop is Stop.FINISH and deadline is None:
                self.say("asked to keep a checkpoint and stop.")
                process.stop()
                deadline = time.monotonic() + GRACE_SECONDS
            if deadline is not None and time.monotonic() > deadline:
                return
            process.wait(LOOK_SECONDS)


def start(driver: Driver, box: Box, output: Path | None) -> tuple[Process, IO[bytes]]:
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


def work(place: Place, lease: protocol.Lease, client: Client, sponsor: Sponsor) -> bool:
    """Do one job. Return whether it could be worked on: False means that the node should pause before the next."""
    wishes = Wishes(sponsor)
    client = client.on_behalf(lease.token)
    try:
        spec = verified(lease, place.identity)
    except Distrusted as error:
        say(str(error), "bold red")
        finish(client, lease.lease, Outcome("failed", str(error)), wishes)
        return False
    job = Job(place, spec, lease, client, wishes)
    beat = heartbeat.HeartbeatLoop(client, lease.lease, lease.seconds, job.heartbeat, wishes)
    beat.start()
    told = False
    try:
        outcome = attempt(job)
        job.phase = "uploading"
        told = conclude(job, outcome)
    finally:
        beat.end()
        with suppress(OSError):  # looked at again, and told, before the next job (`reset`)
            job.workspace.wipe(remember=not told and wishes.by_server is not Stop.LOST)
    return outcome.outcome == "done" or outcome.cause == "model" or wishes.stop > Stop.NONE


def attempt(job: Job) -> Outcome:
    """Run the job's kind and put whatever happens into words."""
    kind = job.spec.order.kind
    log = LogLoop(job.client, job.lease, job.workspace.output, job.wishes)
    try:
        job.workspace.create()
        log.start()
        job.say(f"{KINDS[kind].DOING} (attempt {job.spec.attempt}).")
        return KINDS[kind].run(job)
    except (Interrupted, GaveUp):
        return interrupted(job.wishes)
    except Failed as error:
        return Outcome("failed", str(error), error.cause)
    except Refused as error:
        refused(error, job.wishes)
        return interrupted(job.wishes) if job.wishes.by_server is Stop.LOST else Outcome("failed", error.detail)
    except SandboxError as error:
        return Outcome("failed", str(error))
    except OSError as error:
        traceback.print_exc()
        return Outcome("failed", f"The node could not go on: {error.strerror or type(error).__name__}.")
    except Exception as error:
        traceback.print_exc()
        return Outcome("failed", f"The node's agent stumbled ({type(error).__name__}).")
    finally:
        log.close()


def interrupted(wishes: Wishes) -> Outcome:
    if wishes.trouble and wishes.stop is Stop.NONE:
        return Outcome("failed", wishes.trouble)
    by_server = wishes.by_server >= wishes.sponsor.stop
    return Outcome("released", wishes.reason if by_server else "The sponsor needs the machine.")


def conclude(job: Job, outcome: Outcome) -> bool:
    """Tell the server how the job ended; return whether it knows."""
    files: tuple[protocol.FileRef, ...] = ()
    if job.wishes.by_server is Stop.LOST:
        say(f"Job {job.spec.job}: this node has lost it: {job.wishes.reason} Going on.", "yellow")
        return False
    with suppress(GaveUp, Refused):
        files = send_files(job, outcome.files)
    told = finish(job.client, job.lease, outcome, job.wishes, files, job.seconds)
    words = {"done": "done.", "released": f"handed back. {outcome.reason}", "failed": f"failed. {outcome.reason}"}
    say(f"Job {job.spec.job}: {words[outcome.outcome]}", "green" if outcome.outcome == "done" else "yellow")
    return told


def send_files(job: Job, wanted: Iterable[str]) -> tuple[protocol.FileRef, ...]:
    """Upload those of the small files that are there."""
    with ExitStack() as opened:
        files = {}
        for name in wanted:
            with suppress(OSError, UnsafeFileError):
                content = opened.enter_context(open_file(job.workspace.out, name))
                files[reference(name, content)] = content
        if files:
            send(job.client, f"/leases/{job.lease}", files, job.wishes)
        return tuple(files)


def finish(
    client: Client,
    lease: int,
    outcome: Outcome,
    wishes: Wishes,
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
        persistently(lambda: client.tell(f"/leases/{lease}/finish", message), wishes.over)
    except Refused as error:
        say(f"The server did not take the end of lease {lease}: {error.detail}", "yellow")
        return True  # it knows; there is nothing more to say
    except GaveUp:
        return False
    return True
