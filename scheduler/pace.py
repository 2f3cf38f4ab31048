"""How often may somebody ask? Counted in the cache of this process, so it works whatever else is down.

Not exact: with several web processes each counts for itself. It keeps a node that has gone wild from hurting others;
it is no defence against a flood.
"""

from __future__ import annotations

import time

from django.core.cache import cache

from scheduler.refusals import SlowDown

PER_MINUTE = {
    "register": 30,  # of one address
    "poll": 240,  # of one node
    "lease": 3000,  # of one lease: a checkpoint may have many files, and logs come in small pieces
}


def seconds_left() -> int:
    """Return how long this minute still lasts."""
    return 60 - int(time.time()) % 60


def check(what: str, who: str) -> None:
    """Count one call; raise SlowDown when there were too many in this minute."""
    minute = int(time.time() // 60)
    key = f"pace:{what}:{who}:{minute}"
    cache.add(key, 0, timeout=120)
    try:
        calls = cache.incr(key)
    except ValueError:  # it was evicted just now
        return
    if calls > PER_MINUTE[what]:
        raise SlowDown
