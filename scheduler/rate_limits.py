"""How often may somebody ask? Counted for all web processes together in the cache that they share.

Where there is none (`REDIS_URL` is not set), or it does not answer just now, each process counts for itself: it works
whatever else is down. It keeps a node that has gone wild from hurting others; it is no defence against a flood.
"""

from __future__ import annotations

import logging
import time

from django.core.cache import BaseCache, caches
from redis.exceptions import RedisError

from scheduler.errors import RateLimitError

logger = logging.getLogger(__name__)

PER_MINUTE = {
    "register": 30,  # of one address
    "poll": 240,  # of one node
    "generate-burst": 4,  # prompts of one visitor
    "lease": 3000,  # of one lease: a checkpoint may have many files, and logs come in small pieces
    "log": 60,  # whole logs of runs, read or searched, by one address: each may have megabytes
    "read": 1200,  # of one address, of the public API: twenty a second, for a whole class behind one of them
}
PER_HOUR = {
    "volunteer": 20,  # join tokens for packets, of one address
    "ask": 30,  # for runs, with one token
    "download": 120,  # of files of runs, from one address; each piece of one that goes on counts
    "generate": 20,  # prompts of one visitor
}
SHARED_CACHE_DOWN = "pace:shared-is-down"
DOWN_SECONDS = 10
"""So long a shared cache that did not answer is not asked again: waiting for it would hold everybody up."""


def get_window_seconds(what: str) -> int:
    """Return the seconds within which such calls are counted together."""
    return 3600 if what in PER_HOUR else 60


def get_retry_after(what: str = "") -> int:
    """Return how long this minute, or what it is for such calls, still lasts."""
    return get_window_seconds(what) - int(time.time()) % get_window_seconds(what)


def check_rate_limit(what: str, who: str) -> None:
    """Count one call; raise SlowDown when there were too many lately."""
    if not is_within_rate_limit(what, who):
        raise RateLimitError


def is_within_rate_limit(what: str, who: str) -> bool:
    """Count one call; return whether there were not too many lately."""
    period = int(time.time() // get_window_seconds(what))
    return count_call(f"pace:{what}:{who}:{period}", 2 * get_window_seconds(what)) <= {**PER_MINUTE, **PER_HOUR}[what]


def count_call(key: str, seconds: int) -> int:
    """Return how many calls there were with this one, of all processes where that can be known; forgotten in time."""
    alone = caches["default"]
    if SHARED_CACHE_DOWN not in alone:
        try:
            return increment_counter(caches["shared"], key, seconds)
        except (RedisError, OSError) as error:
            logger.warning("The shared cache does not answer (%s): each web process counts for itself", error)
            alone.set(SHARED_CACHE_DOWN, True, timeout=DOWN_SECONDS)
    return increment_counter(alone, key, seconds)


def increment_counter(cache: BaseCache, key: str, seconds: int) -> int:
    cache.add(key, 0, timeout=seconds)
    try:
        return cache.incr(key)
    except ValueError:  # it was evicted just now
        return 1
