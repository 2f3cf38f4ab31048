"""Signals that stop a run."""

from __future__ import annotations

import signal
from types import FrameType
from typing import Self


class StopRequest:
    """Handles SIGTERM and SIGINT: stop at once, or if `is_graceful` after the current step (a second one at once)."""

    def __init__(self) -> None:
        self.is_graceful = False
        self.is_requested = False

    def __enter__(self) -> Self:
        self.before = {number: signal.signal(number, self.handle_signal) for number in (signal.SIGTERM, signal.SIGINT)}
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self.before.items():
            signal.signal(number, handler)

    def handle_signal(self, number: int, frame: FrameType | None) -> None:
        if self.is_requested or not self.is_graceful:
            raise KeyboardInterrupt
        self.is_requested = True
