"""A side loop of a job: sends what there is to send, until it is told that nothing more will come.

What is not sent yet stays on disk, so an outage of the server costs no memory, and nothing is lost by it.
"""

from __future__ import annotations

import threading
import traceback

from trainer.node.client import GaveUpError, RequestRefusedError
from trainer.node.stop_signal import RELEASE_SECONDS, StopLevel, StopSignal

LEASE_LOST_STATUS = 409
"""The lease is over."""
IDLE_SECONDS = 0.5


class BackgroundSender:
    """Subclasses send one thing in `send_next` and return False if there was none."""

    name = "courier"

    def __init__(self, wishes: StopSignal) -> None:
        self.wishes = wishes
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._run, name=self.name, daemon=True)

    def start(self) -> None:
        self._thread.start()

    def send_next(self) -> bool:
        raise NotImplementedError

    def close(self) -> None:
        """Nothing more will come: send the rest and end. Returns when that is done or given up."""
        self._closing.set()
        while self._thread.is_alive() and not self._unwanted():
            self._thread.join(0.1)
        self._thread.join(RELEASE_SECONDS)  # what is on its way may arrive, but nobody waits for it

    def _unwanted(self) -> bool:
        return self.wishes.over() or self.wishes.stop >= StopLevel.RELEASE

    def _run(self) -> None:
        try:
            while not self._unwanted():
                closing = self._closing.is_set()  # before the look: what came earlier is then seen
                if self.send_next():
                    continue
                if closing:
                    return
                self._closing.wait(IDLE_SECONDS)
        except RequestRefusedError as error:
            stop_on_refusal(error, self.wishes)
        except GaveUpError:
            return
        except Exception as error:
            traceback.print_exc()
            self.wishes.trouble = f"The node's agent could not go on sending the {self.name} ({type(error).__name__})."


def stop_on_refusal(error: RequestRefusedError, wishes: StopSignal) -> None:
    """The server's no ends the lease: quietly if it is over, else with the server's sentence."""
    if error.status == LEASE_LOST_STATUS:
        wishes.server(StopLevel.LOST, error.detail)
    else:
        wishes.trouble = wishes.trouble or error.detail
