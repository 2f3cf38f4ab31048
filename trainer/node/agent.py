"""The node's agent, in the main thread: its identity at the site, what it offers, and the sponsor's signals."""

from __future__ import annotations

import hashlib
import secrets
import signal
import threading
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, TypeVar

from trainer import protocol
from trainer.node.client import GaveUpError, ServerUnreachableError, SiteClient, retry_until_reachable
from trainer.node.console import log
from trainer.node.disk_quota import DiskQuota
from trainer.node.gpu_monitor import GpuMonitor
from trainer.node.gpus import GpuReader, open_gpu_reader
from trainer.node.hardware import detect_hardware
from trainer.node.identity import Identity
from trainer.node.job_handlers import JOB_HANDLERS, REPHRASE_KIND, SELF_TEST_KIND, list_unsupported_kinds
from trainer.node.network_args import DEFAULT_NETWORK_ARGS, NetworkArgs
from trainer.node.stop_signal import SponsorSignal, StopLevel
from trainer.sandbox import SandboxDriver

if TYPE_CHECKING:
    from trainer.rephrase.flags import RephraseOffer

CHECK_SECONDS = 0.1

Result = TypeVar("Result")


class AgentStoppedError(Exception):
    """The sponsor's signal came while the agent had nothing to do."""


class Agent:
    def __init__(
        self,
        client: SiteClient,
        home: Path,
        sandbox: SandboxDriver,
        sandboxes: tuple[str, ...],
        slots: int | None = None,
        offer: RephraseOffer | None = None,
        kinds: tuple[str, ...] = tuple(JOB_HANDLERS),
        network: NetworkArgs = DEFAULT_NETWORK_ARGS,
        swarm_run: int | None = None,
        gpu_reader: GpuReader | None = None,
        disk_bytes: int | None = None,
    ) -> None:
        """`client` carries the join token until the node has joined.

        `sandboxes`: names of the working drivers; `slots`: None for the number that the site sets; `offer`: the
        rephrasing back end; `kinds`: kinds of job that the owner allows; `network`: how other swarm machines reach it;
        `swarm_run`: the only swarm run it joins; `disk_bytes`: quota of its files, None for all that is free.
        """
        self.client = client
        self.home = home
        self.sandbox = sandbox
        self.sandboxes = sandboxes
        self.requested_slots = slots
        self.offer = offer
        self.network = network
        self.swarm_run = swarm_run
        missing = {*(() if offer is not None else (REPHRASE_KIND,)), *list_unsupported_kinds()}
        supported = [kind for kind in kinds if kind not in (*missing, SELF_TEST_KIND)]
        is_tested = any(kind != REPHRASE_KIND for kind in supported)
        self.kinds = (*supported, *([SELF_TEST_KIND] if is_tested else []))
        self._started = secrets.token_hex(8)
        self.quota = DiskQuota(home, disk_bytes)
        self.sponsor = SponsorSignal()
        self.gpu_monitor = GpuMonitor(gpu_reader or open_gpu_reader())
        self.slot_count = slots or 1
        self.next_slot_count = self.slot_count
        self._is_unreachable = False

    def join(self, name: str, labels: tuple[str, ...]) -> Identity:
        """Register with the join token; raise `RequestRefusedError`, or `AgentStoppedError` on the sponsor's signal."""
        return self._join("/register", protocol.Register(name=name, labels=labels, hardware=self.detect_hardware()))

    def join_as_volunteer(self, name: str) -> Identity:
        """Register without an account. Raises as `join`."""
        return self._join("/volunteer", protocol.RegisterVolunteer(name=name, hardware=self.detect_hardware()))

    def _join(self, path: str, message: protocol.Register | protocol.RegisterVolunteer) -> Identity:
        reply = self._run_in_background(
            lambda: self.retry_until_stopped(lambda: self.client.post(path, message, protocol.RegisterReply))
        )
        return Identity(self.client.server, reply.node, reply.token, reply.public_key)

    # --- called by the poll loops ---

    def change_slot_count(self, count: int) -> None:
        """Set the number of slots that the site requests: each slot ends when it is free, then all restart."""
        self.next_slot_count = count

    @property
    def is_changing_slots(self) -> bool:
        return self.next_slot_count != self.slot_count

    def detect_hardware(self) -> protocol.Hardware:
        speeds = (self.client.speed.bytes_per_second, self.client.upload_rate.bytes_per_second)
        speed = min((speed for speed in speeds if speed is not None), default=None)
        available = self.quota.get_available_bytes()
        hardware = detect_hardware(available, self.sandboxes, self.gpu_monitor.reader, speed)
        settings = {
            "kinds": self.kinds,
            "rephraser": self._describe_offer(),
            "swarm_run": self.swarm_run,
            "installation": hash_installation(self._started, hardware.gpu_details),
        }
        return hardware.model_copy(update=settings)

    def _describe_offer(self) -> protocol.Rephraser | None:
        if (offer := self.offer) is None:
            return None
        return protocol.Rephraser(back_end=offer.backend.kind, models=offer.models, campaign=offer.campaign)

    def retry_until_stopped(self, attempt: Callable[[], Result]) -> Result:
        """Retry an unreachable server, with one log line; raise `GaveUpError` when the sponsor stops the agent."""

        def attempt_once() -> Result:
            try:
                return attempt()
            except ServerUnreachableError as error:
                if not self._is_unreachable:
                    log.warning("%s Retrying until it responds.", error)
                self._is_unreachable = True
                raise

        result = retry_until_reachable(attempt_once, lambda: self.sponsor.level > StopLevel.NONE)
        if self._is_unreachable:
            log.info("The server responds.")
        self._is_unreachable = False
        return result

    # --- the main thread ---

    def _run_in_background(self, task: Callable[[], Result]) -> Result:
        """Return or raise what the task does; raise `AgentStoppedError` as soon as the sponsor stops the agent."""
        future: Future[Result] = Future()

        def run() -> None:
            try:
                future.set_result(task())
            except BaseException as error:
                future.set_exception(error)

        thread = threading.Thread(target=run, name="joining", daemon=True)
        thread.start()
        while not future.done() and self.sponsor.level is StopLevel.NONE:
            thread.join(CHECK_SECONDS)
        if not future.done() or isinstance(future.exception(), GaveUpError):
            raise AgentStoppedError
        return future.result()

    @contextmanager
    def handle_signals(self) -> Iterator[None]:
        """Stop on Ctrl-C and on a service manager's SIGTERM. Only in the main thread."""

        def request_stop(number: int, frame: FrameType | None) -> None:
            self.sponsor.request_stop()

        before = {number: signal.signal(number, request_stop) for number in (signal.SIGINT, signal.SIGTERM)}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)


def hash_installation(started: str, gpus: Iterable[protocol.Gpu]) -> str:
    """Return what changes when the agent starts, since its packages may then be others, and when its GPUs change."""
    parts = (started, *(f"{gpu.uuid} {gpu.name} {gpu.driver}" for gpu in gpus))
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()[:16]
