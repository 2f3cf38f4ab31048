"""What takes the site long, or fills its line, is not for one address to ask for again and again."""

from __future__ import annotations

from django.http import HttpRequest, HttpResponse

from leaderboard.formatting import duration
from scheduler import rate_limits


def refusal(request: HttpRequest, what: str) -> HttpResponse | None:
    """Count one call of this address; return 429 with a sentence where there were too many, None where there were not.

    `what` is one of `pace`'s kinds.
    """
    if rate_limits.is_within_rate_limit(what, request.META.get("REMOTE_ADDR", "")):
        return None
    wait = rate_limits.get_retry_after(what)
    sentence = f"That was often, for one address. Nothing is lost: ask again in {duration(wait)}.\n"
    return HttpResponse(sentence, status=429, content_type="text/plain", headers={"Retry-After": str(wait)})
