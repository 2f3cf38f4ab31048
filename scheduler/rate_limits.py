"""Rate limits: calls in fixed windows of a minute or an hour, counted in Django's cache.

With Redis all web processes count together; while it does not answer, each alone. Limits keep a misbehaving node or
client from affecting others; they are no defense against a flood.
"""

from __future__ import annotations

import time

from django.core.cache import cache
from django.http import HttpRequest, HttpResponse

from scheduler.errors import RateLimitError

PER_MINUTE = {
    "register": 30,  # of one address
    "poll": 240,  # of one slot of a node
    "generate-burst": 4,  # prompts of one visitor
    "lease": 3000,  # of one lease: a checkpoint may have many files, and logs come in small pieces
    "log": 60,  # whole logs of runs, read or searched, by one address: each may have megabytes
    "read": 1200,  # of one address, of the public API: enough for a whole class behind one of them
}
PER_HOUR = {
    "volunteer": 20,  # join tokens for packets, of one address
    "ask": 30,  # requests for runs, with the tokens of one user
    "ask-address": 120,  # the same, from one address: each may fetch a repository
    "download": 120,  # of files of runs, from one address; each piece of a resumed download counts
    "generate": 20,  # prompts of one visitor
}


def get_window_seconds(limit: str) -> int:
    return 3600 if limit in PER_HOUR else 60


def get_retry_after(limit: str) -> int:
    """Return the seconds until the window of this limit ends."""
    window = get_window_seconds(limit)
    return window - int(time.time()) % window


def check_rate_limit(limit: str, client: str) -> None:
    """Count one call; raise RateLimitError if there were too many."""
    if not is_within_rate_limit(limit, client):
        raise RateLimitError(limit=limit)


def is_within_rate_limit(limit: str, client: str) -> bool:
    """Count one call; return whether the client is within the limit."""
    window = get_window_seconds(limit)
    key = f"rate-limit:{limit}:{client}:{int(time.time() // window)}"
    cache.add(key, 0, timeout=2 * window)
    try:
        calls = cache.incr(key)
    except ValueError:  # the key was evicted just now
        calls = 1
    return calls <= {**PER_MINUTE, **PER_HOUR}[limit]


def build_rate_limit_response(request: HttpRequest, limit: str) -> HttpResponse | None:
    """Count one call of the visitor's address; return a response with status 429 if there were too many."""
    if is_within_rate_limit(limit, request.META.get("REMOTE_ADDR", "")):
        return None
    seconds = get_retry_after(limit)
    message = f"Too many requests from this IP address. Try again in {seconds} s.\n"
    return HttpResponse(message, status=429, content_type="text/plain", headers={"Retry-After": str(seconds)})
