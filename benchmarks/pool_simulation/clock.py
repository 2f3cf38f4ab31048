"""A virtual clock that `timezone.now()` reads."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta, tzinfo

from django.utils import timezone

START = datetime(2026, 3, 2, tzinfo=UTC)
"""A Monday; daylight saving time begins in Europe and America within the following month."""


class VirtualClock:
    """Seconds since `START`."""

    def __init__(self) -> None:
        self.seconds = 0.0

    @property
    def now(self) -> datetime:
        return self.to_datetime(self.seconds)

    @staticmethod
    def to_datetime(seconds: float) -> datetime:
        return START + timedelta(seconds=seconds)


@contextmanager
def virtual_time() -> Iterator[VirtualClock]:
    """Replace the process's clock. `timezone.now` itself stays: model fields refer to it as their default."""
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
