"""Who gets the next micro-batch: interleaved weighted round robin over the peers of a stage (arXiv 2301.11913, 3.2).

Each peer has a clock that runs ahead by the time its tasks are expected to take; the next task goes to the peer whose
clock is furthest behind. So tasks are shared in proportion to speed, and interleaved. Speed is a moving average of what
was seen. Pure: time is told, not asked.
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from statistics import median

SMOOTHING = 0.2
"""Weight of the newest observation in a peer's average throughput."""


class NoPeers(Exception):
    """No peer of the stage may be asked now. `until`: when the first ban ends; None: there is no peer at all."""

    def __init__(self, until: float | None = None) -> None:
        super().__init__("the stage has no peers" if until is None else f"all peers are banned until {until:.1f}")
        self.until = until


@dataclass
class Known:
    """What is known of a peer."""

    clock: float
    """Seconds of work it has been given, as expected."""
    order: float
    """Breaks ties, so that not every router starts with the same peer."""
    throughput: float | None = None
    """Units of cost a second; None before anything was seen."""
    banned_until: float = float("-inf")


class Router:
    """The peers of one stage, as one caller sees them."""

    def __init__(self, seed: int = 0) -> None:
        self.peers: dict[str, Known] = {}
        self.reached = 0.0
        """The clock of who was picked last: nobody free is behind it."""
        self.last_seen: float | None = None
        """The throughput that was seen last, of whomever."""
        self.chance = random.Random(seed)

    def add(self, peer: str, throughput: float | None = None) -> None:
        """Take a peer in; one that is known keeps what is known of it. A newcomer starts level with the others."""
        if peer not in self.peers:
            self.peers[peer] = Known(self.reached, self.chance.random(), throughput)

    def drop(self, peer: str) -> None:
        """Forget a peer, if it is known."""
        self.peers.pop(peer, None)

    def ban(self, peer: str, now: float, seconds: float) -> None:
        """Ask this peer nothing for so long. A longer ban stays."""
        if peer in self.peers:
            known = self.peers[peer]
            known.banned_until = max(known.banned_until, now + seconds)

    def free(self, peer: str, now: float) -> None:
        """Let a peer be asked again, if it is known."""
        if peer in self.peers:
            self.peers[peer].banned_until = min(self.peers[peer].banned_until, now)

    def banned(self, now: float) -> dict[str, float]:
        """Return who is banned, and until when."""
        return {peer: known.banned_until for peer, known in self.peers.items() if known.banned_until > now}

    def pick(self, cost: float, now: float) -> str:
        """Return who gets a task of this cost; raise `NoPeers` if nobody may."""
        free = {peer: known for peer, known in self.peers.items() if known.banned_until <= now}
        if not free:
            raise NoPeers(min(self.banned(now).values(), default=None))
        for known in free.values():
            # What a peer missed while it was banned is not given to it in one go.
            known.clock = max(known.clock, self.reached)
        peer = min(free, key=lambda peer: (free[peer].clock, free[peer].order))
        self.reached = free[peer].clock
        free[peer].clock += cost / self.throughput(peer)
        return peer

    def observe(self, peer: str, cost: float, seconds: float) -> None:
        """Take in how long a task took."""
        if peer not in self.peers or seconds <= 0 or cost <= 0:
            return
        known, seen = self.peers[peer], cost / seconds
        if self.last_seen is None:
            self.rescale(seen)
        self.last_seen = seen
        known.throughput = seen if known.throughput is None else (1 - SMOOTHING) * known.throughput + SMOOTHING * seen

    def rescale(self, seen: float) -> None:
        """Have clocks tell seconds: while nobody's throughput was known it was taken to be 1."""
        self.reached /= seen
        for known in self.peers.values():
            known.clock /= seen

    def throughput(self, peer: str) -> float:
        """Return a peer's average; of one not yet seen, the median of the others, else what was seen last, else 1."""
        own = self.peers[peer].throughput
        seen = [known.throughput for known in self.peers.values() if known.throughput is not None]
        return own if own is not None else median(seen) if seen else self.last_seen or 1.0
