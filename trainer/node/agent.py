"""The node's agent: who it is at the site, its lanes, and the sponsor's signals. It lives in the main thread.

Each lane asks and works in a thread of its own (`poll`); what a question is waiting for is dropped when the sponsor
stops the agent, a job is waited for.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, TypeVar

from trainer import protocol
from trainer.node import slot_cleanup
from trainer.node.blobs import BlobCache
from trainer.node.client import GaveUpError, ServerUnreachableError, SiteClient, retry_until_reachable
from trainer.node.console import say
from trainer.node.gpu_monitor import GpuMonitor
from trainer.node.gpus import open_gpu_reader
from trainer.node.hardware import detect_hardware, list_processors
from trainer.node.identity import Identity
from trainer.node.job_handlers import JOB_HANDLERS, REPHRASE_KIND, SWARM_KINDS
from trainer.node.network_args import DEFAULT_NETWORK_ARGS, NetworkArgs, is_swarm_installed
from trainer.node.poll import PollLoop
from trainer.node.slot_context import SlotContext
from trainer.node.slots import split_into_slots
from trainer.node.stop_signal import SponsorSignal, StopLevel
from trainer.node.workspace import find_abandoned_leases, remove_folder
from trainer.sandbox import SandboxDriver
from trainer.sandbox.docker import DockerDriver

if TYPE_CHECKING:
    from trainer.rephrase.flags import RephraseOffer

LOOK_SECONDS = 0.1
WEIGHTS_BYTES = 16e9
"""Of models that have written for visitors, kept for the next time. A guess."""

Answer = TypeVar("Answer")


class AgentStoppedError(Exception):
    """The sponsor's signal came while the agent had nothing to do."""


class Agent:
    def __init__(
        self,
        client: SiteClient,
        home: Path,
        sandbox: SandboxDriver,
        sandboxes: tuple[str, ...],
        lanes: int | None = None,
        offer: RephraseOffer | None = None,
        kinds: tuple[str, ...] = tuple(JOB_HANDLERS),
        reach: NetworkArgs = DEFAULT_NETWORK_ARGS,
        swarm_run: int | None = None,
    ) -> None:
        """`client` carries the join token until the node has joined; `lanes`: None runs as many as the site says.

        `offer`: what it rephrases with; None: nothing. `kinds`: of job that its owner lends it for. `reach`: how
        swarms' other machines reach it; `swarm_run`: the only run whose seats it takes.
        """
        self.client = client
        self.home = home
        self.sandbox = sandbox
        self.sandboxes = sandboxes
        self.wished = lanes
        self.offer = offer
        self.reach = reach
        self.swarm_run = swarm_run
        lacking = {*(() if offer is not None else (REPHRASE_KIND,)), *(() if is_swarm_installed() else SWARM_KINDS)}
        self.kinds = tuple(kind for kind in kinds if kind not in lacking)
        self.sponsor = SponsorSignal()
        self.vitals = GpuMonitor(open_gpu_reader())
        self._lanes = lanes or 1
        self._wanted = self._lanes
        self._silent = False

    def join(self, name: str, labels: tuple[str, ...]) -> Identity:
        """Register with the join token. Raise `Refused` if it is not taken, `Left` if the sponsor stops us."""
        message = protocol.Register(name=name, labels=labels, hardware=self.hardware())
        return self._join("/register", message)

    def volunteer(self, name: str) -> Identity:
        """Join without an account, for rephrasing only. Raises as `join`."""
        return self._join("/volunteer", protocol.RegisterVolunteer(name=name, hardware=self.hardware()))

    def _join(self, path: str, message: protocol.Register | protocol.RegisterVolunteer) -> Identity:
        answer = self._in_background(
            lambda: self.patiently(lambda: self.client.post(path, message, protocol.RegisterReply))
        )
        return Identity(self.client.server, answer.node, answer.token, answer.public_key)

    def serve(self, identity: Identity, once: bool) -> None:
        """Work until the sponsor or the server says stop. Raise `Refused` if the server knows us no longer."""
        abandoned = self._clear()
        blobs, preparing = BlobCache(self.home / "blobs"), threading.Lock()
        weights = BlobCache(self.home / "weights", most_bytes=WEIGHTS_BYTES)
        while True:
            loops = [
                PollLoop(self, place, abandoned, once) for place in self._places(identity, blobs, weights, preparing)
            ]
            self._attend(loops)
            if not self.regrouping or self.sponsor.stop > StopLevel.NONE:
                return
            abandoned, self._lanes = (), self._wanted
            say(f"This machine now works on {self._lanes} job{'s' if self._lanes > 1 else ''} at a time.")

    def _places(
        self, identity: Identity, blobs: BlobCache, weights: BlobCache, preparing: threading.Lock
    ) -> Iterator[SlotContext]:
        for lane in split_into_slots(self.vitals.reader.gpus, list_processors(), self._lanes):
            place = (self.home, identity, self.sandbox, blobs, weights, self.vitals, lane, preparing)
            yield SlotContext(*place, self.offer, self.reach)

    # --- what lanes ask ---

    def regroup(self, lanes: int) -> None:
        """The site wishes another number of lanes: each ends when it is free, then all begin anew."""
        self._wanted = lanes

    @property
    def regrouping(self) -> bool:
        return self._wanted != self._lanes

    def hardware(self) -> protocol.Hardware:
        found = detect_hardware(self.home, self.sandboxes, self.vitals.reader, self.client.speed.bytes_per_second)
        own = {"kinds": self.kinds, "rephraser": self._rephraser(), "swarm_run": self.swarm_run}
        return found.model_copy(update=own)

    def _rephraser(self) -> protocol.Rephraser | None:
        if (offer := self.offer) is None:
            return None
        return protocol.Rephraser(back_end=offer.backend.kind, models=offer.models, campaign=offer.campaign)

    def patiently(self, attempt: Callable[[], Answer]) -> Answer:
        """Try without end, telling the sponsor once; raise `GaveUp` when the sponsor stops us."""

        def once() -> Answer:
            try:
                return attempt()
            except ServerUnreachableError as error:
                if not self._silent:
                    say(f"{error} Trying again until it answers.", "yellow")
                self._silent = True
                raise

        answer = retry_until_reachable(once, lambda: self.sponsor.stop > StopLevel.NONE)
        if self._silent:
            say("The server answers.")
        self._silent = False
        return answer

    # --- the main thread ---

    def _attend(self, loops: list[PollLoop]) -> None:
        """Let the lanes work until they end. What ends one against its will ends all: the others hand back first."""
        for loop in loops:
            loop.start()
        pulse = threading.Event()  # never set: waiting for it lets signals through
        while any(loop.alive() for loop in loops):
            stopped = self.sponsor.stop > StopLevel.NONE
            if stopped and not any(loop.working for loop in loops):
                break
            if not stopped and any(loop.error for loop in loops):
                self.sponsor.ask()
            pulse.wait(LOOK_SECONDS)
        for loop in loops:
            if loop.error is not None:
                raise loop.error
        if self.sponsor.stop > StopLevel.NONE or any(loop.alive() for loop in loops):
            raise AgentStoppedError

    def _in_background(self, task: Callable[[], Answer]) -> Answer:
        """Return what the task returns or raise what it raises; `Left` as soon as the sponsor stops us."""
        done: list[Answer] = []
        failed: list[BaseException] = []

        def run() -> None:
            try:
                done.append(task())
            except BaseException as error:
                failed.append(error)

        thread = threading.Thread(target=run, name="joining", daemon=True)
        thread.start()
        while thread.is_alive() and self.sponsor.stop is StopLevel.NONE:
            thread.join(LOOK_SECONDS)
        if failed and not isinstance(failed[0], GaveUpError):
            raise failed[0]
        if not done:
            raise AgentStoppedError
        return done[0]

    @contextmanager
    def listening(self) -> Iterator[None]:
        """In here the sponsor's signals (Ctrl-C, a service manager's stop) are heard; the first main thread only."""

        def heard(number: int, frame: FrameType | None) -> None:
            self.sponsor.ask()

        before = {number: signal.signal(number, heard) for number in (signal.SIGINT, signal.SIGTERM)}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    def _clear(self) -> tuple[int, ...]:
        """Remove what an agent before us left when it was killed; return its leases, for the server."""
        if isinstance(self.sandbox, DockerDriver):
            self.sandbox.remove_stale_containers()
        slot_cleanup.kill_marked_processes(f"{self.home}:")
        leases = find_abandoned_leases(self.home)
        for lease in leases:
            remove_folder(self.home / "work" / str(lease))
        if leases:
            say(f"Cleared away {len(leases)} unfinished job{'s' if len(leases) > 1 else ''}; handing back.")
        return tuple(leases)
