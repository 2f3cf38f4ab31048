"""Admission of workers. A worker's credential is an HMAC of its label under the run's secret.

The site signs credentials into its orders. The coordinator knows the secret and needs no list of workers. A credential
that is passed on admits one machine at a time.
"""

from __future__ import annotations

import hashlib
import hmac

SAMPLE_PREFIX = "sample-"  # of labels that may sample text, and may not join
LABEL_SECONDS = 30.0  # A label stays with a machine for this long after its last hello


def make_credential(secret: str, label: str) -> str:
    """Return the credential of the worker with this label."""
    return hmac.new(secret.encode(), label.encode(), hashlib.sha256).hexdigest()


class Admission:
    """The coordinator's check of credentials. It remembers which machine uses which label."""

    def __init__(self, secret: str) -> None:
        self.secret = secret
        self.holders: dict[str, tuple[str, float]] = {}

    def admit(self, peer: str, label: str, credential: str, now: float) -> bool:
        """Return whether this machine may join. `now`: seconds of a monotonic clock."""
        if not label or label.startswith(SAMPLE_PREFIX) or not self.is_valid(label, credential):
            return False
        holder, seen = self.holders.get(label, (peer, now))
        if holder != peer and now - seen < LABEL_SECONDS:
            return False
        self.holders[label] = (peer, now)
        return True

    def admit_sample(self, label: str, credential: str) -> bool:
        """Return whether text may be sampled with this credential."""
        return label.startswith(SAMPLE_PREFIX) and self.is_valid(label, credential)

    def is_valid(self, label: str, credential: str) -> bool:
        return hmac.compare_digest(make_credential(self.secret, label).encode(), credential.encode())
