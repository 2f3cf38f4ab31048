"""Rate limits: counted by all web processes together, and by each alone while Redis is down."""

from __future__ import annotations

import uuid
from pathlib import Path
from types import SimpleNamespace

import pytest

from dailytrain.cache import FallbackCache
from scheduler import rate_limits
from scheduler.errors import RateLimitError

pytestmark = pytest.mark.processes


def use_redis(monkeypatch: pytest.MonkeyPatch, url: str, prefix: str = "test-rate-limits") -> None:
    """Count in this Redis with a new connection, as another web process does."""
    parameters = {"KEY_PREFIX": prefix, "OPTIONS": {"SOCKET_CONNECT_TIMEOUT": 0.5}}
    monkeypatch.setattr(rate_limits, "cache", FallbackCache(url.replace("redis+socket://", "unix://"), parameters))


@pytest.mark.usefixtures("rate_limit_clock")
def test_check_rate_limit_counts_processes_together(monkeypatch: pytest.MonkeyPatch, redis_url: str) -> None:
    monkeypatch.setitem(rate_limits.PER_MINUTE, "poll", 3)
    prefix = uuid.uuid4().hex
    use_redis(monkeypatch, redis_url, prefix)
    rate_limits.check_rate_limit("poll", "node-7")
    rate_limits.check_rate_limit("poll", "node-7")
    use_redis(monkeypatch, redis_url, prefix)
    rate_limits.check_rate_limit("poll", "node-7")
    with pytest.raises(RateLimitError):
        rate_limits.check_rate_limit("poll", "node-7")
    rate_limits.check_rate_limit("poll", "node-8")


@pytest.mark.usefixtures("rate_limit_clock")
def test_check_rate_limit_without_redis_counts_in_memory_and_warns_once(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setitem(rate_limits.PER_MINUTE, "poll", 2)
    use_redis(monkeypatch, f"unix://{tmp_path}/missing.sock")
    rate_limits.check_rate_limit("poll", "node-7")
    rate_limits.check_rate_limit("poll", "node-7")
    with pytest.raises(RateLimitError):
        rate_limits.check_rate_limit("poll", "node-7")
    assert [record.getMessage().partition(":")[0] for record in caplog.records] == [
        "Redis does not answer, so this process counts and caches alone"
    ]


def test_hourly_limit_ends_with_the_hour(monkeypatch: pytest.MonkeyPatch, rate_limit_clock: SimpleNamespace) -> None:
    monkeypatch.setitem(rate_limits.PER_HOUR, "ask", 2)
    rate_limit_clock.now = 7.2e9 + 1800
    assert [rate_limits.is_within_rate_limit("ask", "token-7") for _ in range(3)] == [True, True, False]
    assert rate_limits.get_retry_after("ask") == 1800
    rate_limit_clock.now = 7.2e9 + 3600
    assert rate_limits.is_within_rate_limit("ask", "token-7"), "the limit restarts each hour"
