"""The thread that renews the lease and receives the server's request to stop."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable

from trainer.node.background_sender import stop_on_refusal
from trainer.node.client import RequestRefusedError, ServerUnreachableError, SiteClient
from trainer.node.console import log
from trainer.node.stop_signal import StopLevel, StopSignal
from trainer.protocol import Heartbeat, HeartbeatReply

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
