"""Freed memory is kept for the next micro-batch, instead of going back to the kernel.

Gradients come and go by the hundred megabytes. By its own choice glibc hands them back each time, and each time the
kernel clears the pages again: at a width of 1024 that was a tenth to a quarter of a micro-batch's CPU time.
"""

from __future__ import annotations

import ctypes

TRIM_THRESHOLD, MMAP_THRESHOLD, ARENA_MAX = -1, -3, -8
"""Of mallopt(3)."""
LARGEST = 2**25
"""Bytes up to which an allocation comes from the heap that is kept: glibc takes no more."""


def keep_freed() -> None:
    """Say so for this process, all threads on one heap. Nothing happens where there is no glibc."""
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        for option, value in ((TRIM_THRESHOLD, 2**31 - 1), (MMAP_THRESHOLD, LARGEST), (ARENA_MAX, 1)):
            mallopt(option, value)
