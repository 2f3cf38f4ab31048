"""Base class of the threads that send a job's log, metrics and checkpoints while it runs.

Unsent data stays on disk, so a server outage costs no memory and loses nothing.
"""

from __future__ import annotations

import threading

from trainer.node.client import GaveUpError, RequestRefusedError, SiteClient, retry_until_reachable
from trainer.node.console import log
from trainer.node.stop_signal import RELEASE_SECONDS, StopLevel, StopSignal
from trainer.protocol import Acknowledgment, Message

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
