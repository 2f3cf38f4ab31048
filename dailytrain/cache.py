"""The cache that web processes share: Redis, and the memory of each process while that does not answer.

Sign-in counts attempts and locks in this cache. Without it nobody could sign in while Redis is down.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import Any

from django.core.cache.backends.locmem import LocMemCache
from django_redis.cache import RedisCache
from redis.exceptions import RedisError

logger = logging.getLogger(__name__)
WARNING_SECONDS = 60.0


def fall_back(name: str) -> Callable[..., Any]:
    """Return a method that calls Redis, and the memory if it does not answer."""

    def call(self: FallbackCache, *args: Any, **kwargs: Any) -> Any:
        try:
            return getattr(RedisCache, name)(self, *args, **kwargs)
        except (RedisError, OSError) as error:
            if time.monotonic() - self.warned_at > WARNING_SECONDS:
                self.warned_at = time.monotonic()
                logger.warning("Redis does not answer, so this process counts and caches alone: %s", error)
            return getattr(self.memory, name)(*args, **kwargs)

    return call


class FallbackCache(RedisCache):
    """A cache in Redis that goes on in memory, for each process alone, while Redis does not answer."""

    def __init__(self, server: str, params: dict[str, Any]) -> None:
        super().__init__(server, params)
        self.memory = LocMemCache(server, {"OPTIONS": {"MAX_ENTRIES": 10_000}})
        self.warned_at = -WARNING_SECONDS

    add = fall_back("add")
    clear = fall_back("clear")
    delete = fall_back("delete")
    get = fall_back("get")
    get_many = fall_back("get_many")
    incr = fall_back("incr")
    set = fall_back("set")
