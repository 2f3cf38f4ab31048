"""How often may somebody ask? Counted for all web processes together in the cache that they share.

Where there is none (`REDIS_URL` is not set), or it does not answer just now, each process counts for itself: it works
whatever else is down. It keeps a node that has gone wild from hurting others; it is no defence against a flood.
"""

from __future__ import annotations

import logging
import time

from django.core.cache import BaseCache, caches
from redis.exceptions import RedisError

from scheduler.refusals import SlowDown

logger = logging.getLogger(__name__)

PER_MINUTE = {
    "register": 30,  # of one address
    "poll": 240,  # of one node
    "lease": 3000,  # of one lease: a checkpoint may have many files, and logs come in small pieces
}
DOWN = "pace:shared-is-down"
DOWN_SECONDS = 10
"""So long a shared cache that did not answer is not asked again: waiting for it would hold everybody up."""


def seconds_left() -> int:
    """Return how long this minute still lasts."""
    return 60 - int(time.time()) % 60


def check(what: str, who: str) -> None:
    """Count one call; raise SlowDown when there were too many in this minute."""
    minute = int(time.time() // 60)
    if count(f"pace:{what}:{who}:{minute}") > PER_MINUTE[what]:
        raise SlowDown


def count(key: str) -> int:
    """Return how many calls there were with this one, of all processes where that can be known."""
    alone = caches["default"]
    if DOWN not in alone:
        try:
            return counted(caches["shared"], key)
        except (RedisError, OSError) as error:
            logger.warning("The shared cache does not answer (%s): each web process counts for itself", error)
            alone.set(DOWN, True, timeout=DOWN_SECONDS)
    return counted(alone, key)


def counted(cache: BaseCache, key: str) -> int:
    cache.add(key, 0, timeout=120)
    try:
        return cache.incr(key)
    except ValueError:  # it was evicted just now
        return 1
