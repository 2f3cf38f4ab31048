"""A clock that goes as fast as the simulation: `timezone.now()` is what it says."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta, tzinfo

from django.utils import timezone

START = datetime(2026, 3, 2, tzinfo=UTC)
"""A Monday; the clocks of Europe and America change within the month that follows."""


class VirtualClock:
    """Seconds since `START`."""

    def __init__(self) -> None:
        self.seconds = 0.0

    @property
    def now(self) -> datetime:
        return self.at(self.seconds)

    @staticmethod
    def at(seconds: float) -> datetime:
        return START + timedelta(seconds=seconds)


@contextmanager
def virtual_time() -> Iterator[VirtualClock]:
    """Let this process read the time from a new clock. Not only `timezone.now`: rows hold that as their defaults."""
    clock = VirtualClock()

    class Virtual(datetime):
        @classmethod
        def now(cls, tz: tzinfo | None = None) -> datetime:  # type: ignore[override]
            return clock.now.astimezone(tz)

    real = vars(timezone)["datetime"]
    timezone.datetime = Virtual  # type: ignore[attr-defined]
    try:
        yield clock
    finally:
        timezone.datetime = real  # type: ignore[attr-defined]
