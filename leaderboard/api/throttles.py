"""How often anybody may read: generous, and counted for all web processes together."""

from __future__ import annotations

from django.http import HttpRequest
from ninja.throttling import BaseThrottle

from scheduler import rate_limits


class PerReader(BaseThrottle):
    """So many a minute from one address. An answer of 304 counts too: it has been worked out."""

    def allow_request(self, request: HttpRequest) -> bool:
        return rate_limits.is_within_rate_limit("read", request.META.get("REMOTE_ADDR", ""))

    def wait(self) -> float:
        return rate_limits.get_retry_after("read")
