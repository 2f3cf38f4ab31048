"""Interleaved weighted round robin over the peers of a stage (arXiv 2301.11913, 3.2).

Each peer has a clock that advances by the expected time of its tasks. The next task goes to the peer whose clock is
furthest behind, so tasks are interleaved and shared in proportion to speed. Speed is a moving average of observations.
Pure: the current time is an argument.
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from statistics import median

SMOOTHING = 0.2
"""Weight of the newest observation in a peer's average throughput."""


class NoPeersError(Exception):
    """No peer of the stage is available. `until`: when the first ban ends; None: the stage has no peers."""

    def __init__(self, until: float | None = None) -> None:
        super().__init__("the stage has no peers" if until is None else f"all peers are banned until {until:.1f}")
        self.until = until


@dataclass
class PeerStats:
    """Statistics of a peer."""

    clock: float
    """Expected seconds of the work it was given."""
    order: float
    """Random tie-breaker, so that routers start with different peers."""
    throughput: float | None = None
    """Units of cost per second; None before the first observation."""
    banned_until: float = float("-inf")


class Router:
    """The peers of one stage, as one caller sees them."""

    def __init__(self, seed: int = 0) -> None:
        self.peers: dict[str, PeerStats] = {}
        self.last_clock = 0.0
        """The clock of the peer picked last; clocks of available peers are not behind it."""
        self.last_seen: float | None = None
        """The last observed throughput, of any peer."""
        self.rng = random.Random(seed)

    def add(self, peer: str, throughput: float | None = None) -> None:
        """Add a peer, level with the others. A peer that is present keeps its statistics."""
        if peer not in self.peers:
            self.peers[peer] = PeerStats(self.last_clock, self.rng.random(), throughput)

    def drop(self, peer: str) -> None:
        """Remove a peer, if present."""
        self.peers.pop(peer, None)

    def ban(self, peer: str, now: float, seconds: float) -> None:
        """Exclude a peer for `seconds`. A longer ban stays."""
        if peer in self.peers:
            known = self.peers[peer]
            known.banned_until = max(known.banned_until, now + seconds)

    def unban(self, peer: str, now: float) -> None:
        """End a peer's ban, if present."""
        if peer in self.peers:
            self.peers[peer].banned_until = min(self.peers[peer].banned_until, now)

    def get_bans(self, now: float) -> dict[str, float]:
        """Return the banned peers, and until when."""
        return {peer: known.banned_until for peer, known in self.peers.items() if known.banned_until > now}

    def pick(self, cost: float, now: float) -> str:
        """Return the peer for a task of this cost; raise `NoPeersError` if none is available."""
        free = {peer: known for peer, known in self.peers.items() if known.banned_until <= now}
        if not free:
            raise NoPeersError(min(self.get_bans(now).values(), default=None))
        for known in free.values():
            # A peer that was banned does not receive all it missed at once.
            known.clock = max(known.clock, self.last_clock)
        peer = min(free, key=lambda peer: (free[peer].clock, free[peer].order))
        self.last_clock = free[peer].clock
        free[peer].clock += cost / self.throughput(peer)
        return peer

    def observe(self, peer: str, cost: float, seconds: float) -> None:
        """Record the duration of a task."""
        if peer not in self.peers or seconds <= 0 or cost <= 0:
            return
        known, seen = self.peers[peer], cost / seconds
        if self.last_seen is None:
            self.rescale(seen)
        self.last_seen = seen
        known.throughput = seen if known.throughput is None else (1 - SMOOTHING) * known.throughput + SMOOTHING * seen

    def rescale(self, seen: float) -> None:
        """Convert clocks to seconds: before the first observation they assume a throughput of 1."""
        self.last_clock /= seen
        for known in self.peers.values():
            known.clock /= seen

    def throughput(self, peer: str) -> float:
        """Return a peer's average; without observations the others' median, else the last observation, else 1."""
        own = self.peers[peer].throughput
        seen = [known.throughput for known in self.peers.values() if known.throughput is not None]
        return own if own is not None else median(seen) if seen else self.last_seen or 1.0
