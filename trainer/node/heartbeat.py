"""Keeps the lease, and hears from the server when to stop."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable

from trainer.node.background_sender import stop_on_refusal
from trainer.node.client import RequestRefusedError, ServerUnreachableError, SiteClient
from trainer.node.console import say
from trainer.node.stop_signal import StopLevel, StopSignal
from trainer.protocol import Heartbeat, HeartbeatReply

STOPS = {"": StopLevel.NONE, "finish": StopLevel.FINISH, "cancel": StopLevel.CANCEL}


class HeartbeatLoop:
    def __init__(
        self, client: SiteClient, lease: int, seconds: float, state: Callable[[], Heartbeat], wishes: StopSignal
    ) -> None:
        """`seconds`: what the lease lasts without a heartbeat; `state`: asked for what to say."""
        self._client = client
        self._path = f"/leases/{lease}/heartbeat"
        self._interval = max(seconds / 4, 0.05)
        self._state = state
        self._wishes = wishes
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name="heartbeat", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def end(self) -> None:
        self._ended.set()
        self._thread.join()

    def _run(self) -> None:
        silent_since = 0.0
        while not self._ended.is_set() and self._wishes.by_server is not StopLevel.LOST:
            try:
                self._beat()
                if silent_since:
                    say("The server answers again.")
                silent_since = 0.0
            except ServerUnreachableError as error:
                if not silent_since:
                    silent_since = time.monotonic()
                    say(f"{error} The job goes on; what it sends is kept until the server answers.", "yellow")
            except RequestRefusedError as error:
                stop_on_refusal(error, self._wishes)
                return
            # A beat that did not arrive is sent again sooner.
            self._ended.wait(self._interval * (random.uniform(0.2, 0.6) if silent_since else random.uniform(0.9, 1)))

    def _beat(self) -> None:
        reply = self._client.post(self._path, self._state(), HeartbeatReply, patience=max(self._interval * 2, 5))
        if reply.stop:
            self._wishes.server(STOPS[reply.stop], reply.reason)
