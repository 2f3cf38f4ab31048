"""Interleaved weighted round robin over the peers of a stage (arXiv 2301.11913, 3.2).

Each peer has a clock that advances by the expected time of its tasks. The next task goes to the peer whose clock is
furthest behind, so tasks are interleaved and shared in proportion to speed. Speed is a moving average of observations.
Pure: the current time is an argument.
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from statistics import median

SMOOTHING = 0.2  # Weight of the newest observation in a peer's average throughput


class NoPeersError(Exception):
    """No peer of the stage is available. `until`: when the first ban ends; None: the stage has no peers."""

    def __init__(self, until: float | None = None) -> None:
        super().__init__("the stage has no peers" if until is None else f"all peers are banned until {until:.1f}")
        self.until = until


@dataclass
class PeerStats:
    """Statistics of a peer."""

    clock: float  # Expected seconds of its assigned work
    order: float  # Random tie-breaker, so that routers start with different peers
    throughput: float | None = None  # Units of cost per second; None before the first observation
    banned_until: float = float("-inf")


class Router:
    """The peers of one stage, as one caller sees them."""

    def __init__(self, seed: int = 0) -> None:
        self.peers: dict[str, PeerStats] = {}
        self.last_clock = 0.0  # The clock of the peer picked last; clocks of available peers are not behind it
        self.last_throughput: float | None = None  # The last observed throughput, of any peer
        self.rng = random.Random(seed)

    def add(self, peer: str, throughput: float | None = None) -> None:
        """Add a peer, level with the others. A peer that is present keeps its statistics."""
        if peer not in self.peers:
            self.peers[peer] = PeerStats(self.last_clock, self.rng.random(), throughput)

    def drop(self, peer: str) -> None:
        """Remove a peer, if present."""
        self.peers.pop(peer, None)

    def ban(self, peer: str, now: float, seconds: float) -> None:
        """Exclude a peer for `seconds`. A longer ban remains."""
        if peer in self.peers:
            stats = self.peers[peer]
            stats.banned_until = max(stats.banned_until, now + seconds)

    def unban(self, peer: str, now: float) -> None:
        """End a peer's ban, if present."""
        if peer in self.peers:
            self.peers[peer].banned_until = min(self.peers[peer].banned_until, now)

    def get_bans(self, now: float) -> dict[str, float]:
        """Return the banned peers, and until when."""
        return {peer: stats.banned_until for peer, stats in self.peers.items() if stats.banned_until > now}

    def pick(self, cost: float, now: float) -> str:
        """Return the peer for a task of this cost; raise `NoPeersError` if none is available."""
        available = {peer: stats for peer, stats in self.peers.items() if stats.banned_until <= now}
        if not available:
            raise NoPeersError(min(self.get_bans(now).values(), default=None))
        for stats in available.values():
            # After a ban a peer does not get all the work that it missed.
            stats.clock = max(stats.clock, self.last_clock)
        peer = min(available, key=lambda peer: (available[peer].clock, available[peer].order))
        self.last_clock = available[peer].clock
        available[peer].clock += cost / self.get_throughput(peer)
        return peer

    def observe(self, peer: str, cost: float, seconds: float) -> None:
        """Record the duration of a task."""
        if peer not in self.peers or seconds <= 0 or cost <= 0:
            return
        stats, new = self.peers[peer], cost / seconds
        if self.last_throughput is None:
            self.rescale(new)
        self.last_throughput = new
        stats.throughput = new if stats.throughput is None else (1 - SMOOTHING) * stats.throughput + SMOOTHING * new

    def rescale(self, throughput: float) -> None:
        """Convert clocks to seconds: before the first observation they assume a throughput of 1."""
        self.last_clock /= throughput
        for stats in self.peers.values():
            stats.clock /= throughput

    def get_throughput(self, peer: str) -> float:
        """Return a peer's average; without observations the others' median, else the last observation, else 1."""
        if (throughput := self.peers[peer].throughput) is not None:
            return throughput
        others = [stats.throughput for stats in self.peers.values() if stats.throughput is not None]
        return median(others) if others else self.last_throughput or 1.0
