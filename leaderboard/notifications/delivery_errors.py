"""Errors of channels."""

from __future__ import annotations


class DeliveryError(Exception):
    """A notice was not delivered; the subscriber reads the message. `is_permanent`: retries are useless."""

    def __init__(self, reason: str, *, is_permanent: bool = False) -> None:
        super().__init__(reason)
        self.is_permanent = is_permanent
