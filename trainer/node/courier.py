"""A side loop of a job: sends what there is to send, until it is told that nothing more will come.

What is not sent yet stays on disk, so an outage of the server costs no memory, and nothing is lost by it.
"""

from __future__ import annotations

import threading
import traceback

from trainer.node.client import GaveUp, Refused
from trainer.node.stopping import RELEASE_SECONDS, Stop, Wishes

CONFLICT = 409
"""The lease is over."""
PAUSE_SECONDS = 0.5


class Courier:
    """Subclasses send one thing in `send_next` and return False if there was none."""

    name = "courier"

    def __init__(self, wishes: Wishes) -> None:
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
        return self.wishes.over() or self.wishes.stop >= Stop.RELEASE

    def _run(self) -> None:
        try:
            while not self._unwanted():
                closing = self._closing.is_set()  # before the look: what came earlier is then seen
                if self.send_next():
                    continue
                if closing:
                    return
                self._closing.wait(PAUSE_SECONDS)
        except Refused as error:
            refused(error, self.wishes)
        except GaveUp:
            return
        except Exception as error:
            traceback.print_exc()
            self.wishes.trouble = f"The node's agent could not go on sending the {self.name} ({type(error).__name__})."


def refused(error: Refused, wishes: Wishes) -> None:
    """The server's no ends the lease: quietly if it is over, else with the server's sentence."""
    if error.status == CONFLICT:
        wishes.server(Stop.LOST, error.detail)
    else:
        wishes.trouble = wishes.trouble or error.detail
