"""The agent's first loop: join, ask for work, do it, ask again. The server sets the pace."""

from __future__ import annotations

import random
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import TypeVar

from trainer import wire
from trainer.agent.blobs import Blobs
from trainer.agent.client import SECONDS, Client, GaveUp, Unreachable, persistently
from trainer.agent.console import say
from trainer.agent.hardware import detect
from trainer.agent.identity import Identity
from trainer.agent.stopping import Sponsor, Stop
from trainer.agent.workspace import leftovers, wipe
from trainer.sandbox import Driver
from trainer.sandbox.docker import Docker

POLL_SECONDS = 20.0
"""How long the server may hold the question open."""
LEAST_SECONDS = 1.0
"""Between two questions when the server answered "nothing" at once and named no time."""
TROUBLE_SECONDS = 60.0
"""The longest pause after jobs that this node could not work on."""

Answer = TypeVar("Answer")


class Left(Exception):
    """The sponsor's signal came while the agent had nothing to do."""


class Agent:
    def __init__(self, client: Client, home: Path, sandbox: Driver, sandboxes: tuple[str, ...]) -> None:
        """`client` carries the join token until the node has joined."""
        self.client = client
        self.home = home
        self.sandbox = sandbox
        self.sandboxes = sandboxes
        self.sponsor = Sponsor()
        self._idle = False
        self._waiting = False
        self._silent = False

    def join(self, name: str, labels: tuple[str, ...]) -> Identity:
        """Register with the join token. Raise `Refused` if it is not taken, `Left` if the sponsor stops us."""
        message = wire.Register(name=name, labels=labels, hardware=self._hardware())
        answer = self._patiently(lambda: self.client.post("/register", message, wire.Registered))
        return Identity(self.client.server, answer.node, answer.token, answer.public_key)

    def serve(self, identity: Identity, once: bool) -> None:
        """Work until the sponsor or the server says stop. Raise `Refused` if the server knows us no longer."""
        abandoned = self._clear()
        failures = 0
        while True:
            action = self._ask(abandoned)
            abandoned = ()
            if action.action == "stop":
                say(f"The server asks this node to stop. {action.reason}".rstrip())
                return
            if action.lease is None:
                self._tell_idle(action)
                self._rest(action.wait_seconds * random.uniform(1, 1.25))
                continue
            self._idle = False
            failures = 0 if self._work(identity, action.lease) else failures + 1
            if once or self.sponsor.stop > Stop.NONE:
                return
            if failures:
                self._rest(random.uniform(0.5, 1) * min(TROUBLE_SECONDS, 2.0 ** (failures - 1)))

    def _work(self, identity: Identity, lease: wire.Lease) -> bool:
        from trainer.agent.job import Place, work  # here: the first question should be asked quickly

        place = Place(self.home, identity, self.sandbox, Blobs(self.home / "blobs"))
        return work(place, lease, self.client, self.sponsor)

    def _ask(self, abandoned: tuple[int, ...]) -> wire.Action:
        question = wire.Poll(hardware=self._hardware(), wait_seconds=POLL_SECONDS, abandoned=abandoned)
        asked = time.monotonic()
        action = self._patiently(
            lambda: self.client.post("/poll", question, wire.Action, patience=POLL_SECONDS + SECONDS)
        )
        if action.action != "job" and action.wait_seconds == 0 and time.monotonic() - asked < LEAST_SECONDS:
            self._rest(LEAST_SECONDS * random.uniform(0.5, 1))
        return action

    def _tell_idle(self, action: wire.Action) -> None:
        if action.action == "pause":
            say(f"Paused. {action.reason}")
        elif not self._idle:
            say(f"Waiting for work. {action.reason}".rstrip())
        self._idle = action.action == "idle"

    def _patiently(self, attempt: Callable[[], Answer]) -> Answer:
        """Try without end, telling the sponsor once; raise `Left` when the sponsor stops us."""

        def once() -> Answer:
            try:
                with self._interruptible():
                    return attempt()
            except Unreachable as error:
                if not self._silent:
                    say(f"{error} Trying again until it answers.", "yellow")
                self._silent = True
                raise

        try:
            answer = persistently(once, lambda: self.sponsor.stop > Stop.NONE)
        except GaveUp as error:
            raise Left from error
        if self._silent:
            say("The server answers.")
        self._silent = False
        return answer

    def _rest(self, seconds: float) -> None:
        with self._interruptible():
            time.sleep(seconds)

    @contextmanager
    def _interruptible(self) -> Iterator[None]:
        """In here a signal ends the wait at once, by `Left`; elsewhere it is only remembered."""
        self._waiting = True
        try:
            if self.sponsor.stop > Stop.NONE:
                raise Left
            yield
        finally:
            self._waiting = False

    @contextmanager
    def listening(self) -> Iterator[None]:
        """In here the sponsor's signals (Ctrl-C, a service manager's stop) are heard; the first main thread only."""

        def heard(number: int, frame: FrameType | None) -> None:
            self.sponsor.ask()
            if self._waiting:
                self._waiting = False
                raise Left

        before = {number: signal.signal(number, heard) for number in (signal.SIGINT, signal.SIGTERM)}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    def _clear(self) -> tuple[int, ...]:
        """Remove what an agent before us left when it was killed; return its leases, for the server."""
        if isinstance(self.sandbox, Docker):
            self.sandbox.sweep()
        leases = leftovers(self.home)
        for lease in leases:
            wipe(self.home / "work" / str(lease))
        if leases:
            say(f"Cleared away {len(leases)} unfinished job{'s' if len(leases) > 1 else ''}; handing back.")
        return tuple(leases)

    def _hardware(self) -> wire.Hardware:
        return detect(self.home, self.sandboxes)
