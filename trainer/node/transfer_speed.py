"""Speed of the connection to the site, measured on transfers that happen anyway."""

from __future__ import annotations

import statistics
from collections import deque
from typing import Literal

MIN_BYTES = 1_000_000  # a smaller transfer measures latency rather than speed
HISTORY = 9

Direction = Literal["up", "down"]


class TransferSpeed:
    """The median of the latest large transfers in each direction. Thread-safe."""

    def __init__(self) -> None:
        self._latest: dict[Direction, deque[float]] = {"up": deque(maxlen=HISTORY), "down": deque(maxlen=HISTORY)}

    def record(self, direction: Direction, size: int, seconds: float) -> None:
        if size >= MIN_BYTES and seconds > 0:
            self._latest[direction].append(size / seconds)

    @property
    def bytes_per_second(self) -> float | None:
        """Speed of the slower direction; None before the first large transfer."""
        medians = [statistics.median_high(latest) for latest in map(list, self._latest.values()) if latest]
        return min(medians, default=None)
