"""Waits for conditions. The time limit ends a test that hangs; a busy machine does not reach it."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

WAIT_SECONDS = 900


def wait_until(condition: Callable[[], Any]) -> None:
    """Return when the condition is true."""
    deadline = time.monotonic() + WAIT_SECONDS
    while not condition():
        assert time.monotonic() < deadline, "the condition did not become true in time"
        time.sleep(0.02)
