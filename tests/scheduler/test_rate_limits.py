"""Rate limits: counted for all web processes together, and going on when what they share is down."""

from __future__ import annotations

from pathlib import Path

import pytest
from django.core.cache.backends.locmem import LocMemCache
from django.core.cache.backends.redis import RedisCache

from scheduler import rate_limits
from scheduler.errors import RateLimitError


def process(monkeypatch: pytest.MonkeyPatch, name: str, url: str) -> None:
    """From here on we are another web process: with a cache of its own, and the Redis of all."""
    shared = RedisCache(url.replace("redis+socket://", "unix://"), {"KEY_PREFIX": "test-pace"})
    alone = LocMemCache(name, {})
    alone.clear()
    monkeypatch.setattr(rate_limits, "caches", {"default": alone, "shared": shared})


def test_two_processes_count_together(monkeypatch: pytest.MonkeyPatch, redis_url: str) -> None:
    monkeypatch.setitem(rate_limits.PER_MINUTE, "poll", 3)
    monkeypatch.setattr(rate_limits.time, "time", lambda: 6e9)
    process(monkeypatch, "one", redis_url)
    rate_limits.caches["shared"].delete("pace:poll:node-7:100000000")
    rate_limits.check_rate_limit("poll", "node-7")
    rate_limits.check_rate_limit("poll", "node-7")
    process(monkeypatch, "two", redis_url)
    rate_limits.check_rate_limit("poll", "node-7")
    with pytest.raises(RateLimitError):
        rate_limits.check_rate_limit("poll", "node-7")
    rate_limits.check_rate_limit("poll", "node-8")
    rate_limits.caches["shared"].delete_many(["pace:poll:node-7:100000000", "pace:poll:node-8:100000000"])


def test_without_what_they_share_each_counts_for_itself(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setitem(rate_limits.PER_MINUTE, "poll", 2)
    monkeypatch.setattr(rate_limits.time, "time", lambda: 6e9)
    process(monkeypatch, "alone", f"unix://{tmp_path}/nobody.sock")
    rate_limits.check_rate_limit("poll", "node-7")
    assert rate_limits.SHARED_CACHE_DOWN in rate_limits.caches["default"], "it is left in peace for a while"
    rate_limits.check_rate_limit("poll", "node-7")
    with pytest.raises(RateLimitError):
        rate_limits.check_rate_limit("poll", "node-7")


def test_what_is_counted_by_the_hour_is_counted_together_too(monkeypatch: pytest.MonkeyPatch, redis_url: str) -> None:
    monkeypatch.setitem(rate_limits.PER_HOUR, "ask", 2)
    monkeypatch.setattr(rate_limits.time, "time", lambda: 7.2e9 + 1800)
    key = "pace:ask:token-7:2000000"
    process(monkeypatch, "one", redis_url)
    rate_limits.caches["shared"].delete(key)
    assert rate_limits.is_within_rate_limit("ask", "token-7")
    process(monkeypatch, "two", redis_url)
    assert rate_limits.is_within_rate_limit("ask", "token-7")
    assert not rate_limits.is_within_rate_limit("ask", "token-7")
    assert rate_limits.get_retry_after("ask") == 1800
    monkeypatch.setattr(rate_limits.time, "time", lambda: 7.2e9 + 3600)
    assert rate_limits.is_within_rate_limit("ask", "token-7"), "another hour"
    rate_limits.caches["shared"].delete_many([key, "pace:ask:token-7:2000001"])
