"""Throttles of the API. They count as the pages do, because ninja's own keep a list of times for each client."""

from __future__ import annotations

from django.http import HttpRequest
from ninja.throttling import BaseThrottle

from scheduler import rate_limits


class AddressThrottle(BaseThrottle):
    """Requests a minute from one address. An answer of 304 counts too: it has been computed."""

    limit = "read"

    def get_client(self, request: HttpRequest) -> str:
        return str(request.META.get("REMOTE_ADDR", ""))

    def allow_request(self, request: HttpRequest) -> bool:
        return rate_limits.is_within_rate_limit(self.limit, self.get_client(request))

    def wait(self) -> float:
        return rate_limits.get_retry_after(self.limit)


class TokenThrottle(AddressThrottle):
    """Requests for runs an hour with one token, or from one repository."""

    limit = "ask"

    def get_client(self, request: HttpRequest) -> str:
        return str(request.auth.pk)  # type: ignore[attr-defined]
