"""Requests that end a job early: two signals from the sponsor, three commands from the server.

Only plain assignments, because a signal handler may run at any moment and must not wait for a lock.
"""

from __future__ import annotations

import enum
import time


class StopLevel(enum.IntEnum):
    """The larger number wins."""

    NONE = 0
    FINISH = 1  # save and upload a checkpoint, release the job
    RELEASE = 2  # kill it now, release the job
    CANCEL = 3  # kill it now, keep nothing
    LOST = 4  # the lease is over: kill it and report nothing


FINISH_SECONDS = 90  # how long an unreachable server is retried after the sponsor's first signal
RELEASE_SECONDS = 3


class SponsorSignal:
    """Stop requests of the sponsor by signals. Lives as long as the agent."""

    def __init__(self) -> None:
        self.level = StopLevel.NONE
        self.requested_at = 0.0

    def request_stop(self) -> StopLevel:
        """Request a stop after the next checkpoint; a second call requests it at once."""
        self.level = StopLevel.FINISH if self.level is StopLevel.NONE else StopLevel.RELEASE
        self.requested_at = time.monotonic()
        return self.level

    def has_timed_out(self) -> bool:
        timeout = {StopLevel.FINISH: FINISH_SECONDS, StopLevel.RELEASE: RELEASE_SECONDS}.get(self.level)
        return timeout is not None and time.monotonic() - self.requested_at > timeout


class StopSignal:
    """Stop requests of the sponsor and the server for one job."""

    def __init__(self, sponsor: SponsorSignal) -> None:
        self.sponsor = sponsor
        self.server_level = StopLevel.NONE
        self.reason = ""
        self.error = ""  # why a background sender cannot continue: the job ends with this sentence

    def stop_by_server(self, level: StopLevel, reason: str) -> None:
        if level > self.server_level:
            self.server_level, self.reason = level, reason

    @property
    def level(self) -> StopLevel:
        return max(self.server_level, self.sponsor.level)

    def is_stopping(self) -> bool:
        """Return whether the job should end, on request or because of an error."""
        return self.level > StopLevel.NONE or bool(self.error)

    def should_drop_uploads(self) -> bool:
        """Return whether unfinished uploads should be dropped."""
        return self.has_given_up() or self.level >= StopLevel.RELEASE

    def has_given_up(self) -> bool:
        """Return whether further attempts to reach the server about this job are useless."""
        return self.server_level is StopLevel.LOST or self.sponsor.has_timed_out()
