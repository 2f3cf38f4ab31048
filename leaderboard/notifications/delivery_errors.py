"""A notice that did not get there."""

from __future__ import annotations


class DeliveryError(Exception):
    """It was not taken; the message is a sentence for the subscriber. `for_good`: nor will any other be."""

    def __init__(self, reason: str, *, for_good: bool = False) -> None:
        super().__init__(reason)
        self.for_good = for_good
