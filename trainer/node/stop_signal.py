"""What ends a job before its time: two words of the sponsor's, three of the server's.

Only plain assignments: a signal handler may come at any moment, and must not wait for a lock.
"""

from __future__ import annotations

import enum
import time


class StopLevel(enum.IntEnum):
    """The larger number wins."""

    NONE = 0
    FINISH = 1  # keep the next checkpoint, upload it, hand the job back
    RELEASE = 2  # kill it now, hand the job back
    CANCEL = 3  # kill it now, nothing is kept
    LOST = 4  # the lease is over: kill it, tell nobody


FINISH_SECONDS = 90
"""After the sponsor's first word this is how long an unreachable server is still tried."""
RELEASE_SECONDS = 3


class SponsorSignal:
    """What the sponsor has asked of the agent, by signals. Lives as long as the agent."""

    def __init__(self) -> None:
        self.stop = StopLevel.NONE
        self.asked_at = 0.0

    def ask(self) -> StopLevel:
        """The first time: finish what can be finished soon. The second time: leave now."""
        self.stop = StopLevel.FINISH if self.stop is StopLevel.NONE else StopLevel.RELEASE
        self.asked_at = time.monotonic()
        return self.stop

    def out_of_patience(self) -> bool:
        patience = {StopLevel.FINISH: FINISH_SECONDS, StopLevel.RELEASE: RELEASE_SECONDS}.get(self.stop)
        return patience is not None and time.monotonic() - self.asked_at > patience


class StopSignal:
    """What is wished of one job, by the sponsor and by the server."""

    def __init__(self, sponsor: SponsorSignal) -> None:
        self.sponsor = sponsor
        self.by_server = StopLevel.NONE
        self.reason = ""
        self.trouble = ""
        """The sentence of a side loop that cannot go on: the job ends with it."""

    def server(self, stop: StopLevel, reason: str) -> None:
        if stop > self.by_server:
            self.by_server, self.reason = stop, reason

    @property
    def stop(self) -> StopLevel:
        return max(self.by_server, self.sponsor.stop)

    def over(self) -> bool:
        """Is there no use in trying further to reach the server about this job?"""
        return self.by_server is StopLevel.LOST or self.sponsor.out_of_patience()
