"""How fast the line to the site is, from what goes over it anyway: nothing is transferred to measure."""

from __future__ import annotations

from collections import deque
from typing import Literal

LEAST_BYTES = 1_000_000
"""A smaller transfer says more about delay than about speed."""
REMEMBERED = 9

Direction = Literal["up", "down"]


class TransferSpeed:
    """The median of the latest large transfers in each direction. May be told from several threads."""

    def __init__(self) -> None:
        self._latest: dict[Direction, deque[float]] = {"up": deque(maxlen=REMEMBERED), "down": deque(maxlen=REMEMBERED)}

    def note(self, direction: Direction, size: int, seconds: float) -> None:
        if size >= LEAST_BYTES and seconds > 0:
            self._latest[direction].append(size / seconds)

    @property
    def bytes_per_second(self) -> float | None:
        """Of the slower direction; None until there was a large transfer."""
        medians = [sorted(latest)[len(latest) // 2] for latest in map(list, self._latest.values()) if latest]
        return min(medians, default=None)
