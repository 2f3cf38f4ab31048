"""Who may come: a seat's credential is made of the run's secret and the seat's own label.

The site makes both and signs them into the orders; the coordinator, which has the secret, needs no list. So a seat's
contribution is its own, and one that is given away lets in one machine at a time.
"""

from __future__ import annotations

import hashlib
import hmac

FRESH = 30.0
"""Seconds after the last hello in which a label stays with the machine that came with it."""


def credential(secret: str, label: str) -> str:
    """Return what a seat of this label is let in with."""
    return hmac.new(secret.encode(), label.encode(), hashlib.sha256).hexdigest()


class Door:
    """The coordinator's: remembers which machine came with which label."""

    def __init__(self, secret: str) -> None:
        self.secret = secret
        self.holders: dict[str, tuple[str, float]] = {}

    def admits(self, peer: str, label: str, shown: str, now: float) -> bool:
        """Whether this machine may come. `now`: seconds of any clock that does not jump."""
        if not label or not hmac.compare_digest(credential(self.secret, label).encode(), shown.encode()):
            return False
        holder, seen = self.holders.get(label, (peer, now))
        if holder != peer and now - seen < FRESH:
            return False
        self.holders[label] = (peer, now)
        return True
