"""Pages for visitors without an account: shown again as they were, for a moment, and never sent twice to the same one.

Whoever is signed in gets a page of their own each time, and so does whoever brings a cookie.
"""

from __future__ import annotations

import gzip
import hashlib
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import wraps
from typing import Any

from django.conf import settings
from django.core.cache import caches
from django.http import HttpRequest, HttpResponse
from django.http.response import HttpResponseBase
from django.utils.cache import get_conditional_response, patch_vary_headers

from leaderboard.views.live import latest_event
from leaderboard.views.shared import share

LEVEL = 5
"""Of gzip: the last tenths of a per cent cost as much as all before them."""

View = Callable[..., HttpResponseBase]
MAKING = [threading.Lock() for _ in range(64)]
"""Held while a page is made, by what it is kept under: of a crowd that comes just then one makes it, the others wait.
Were each to make its own, the last would be ready after the page's moment, and the next crowd would find none."""


@dataclass(frozen=True)
class Kept:
    content: bytes
    """Compressed."""
    headers: dict[str, str]
    tag: str


def kept(view: View) -> View:
    """Return a view whose answers are kept until something happens to anything, and for a moment at most.

    A page says what time it is and how far a run has come, so the moment (`PAGES_KEPT_SECONDS`) is short: long enough
    that a crowd costs as much as one visitor. 0 keeps nothing.
    """

    @wraps(view)
    def answer(request: HttpRequest, **place: Any) -> HttpResponseBase:
        if request.method != "GET" or request.COOKIES or not settings.PAGES_KEPT_SECONDS:
            return view(request, **place)
        cache, key = caches["pages"], name_of(request)
        page: Kept | None = cache.get(key)
        if page is None:
            with MAKING[hash(key) % len(MAKING)]:
                page = cache.get(key)  # another thread may have made it meanwhile
                if page is None:
                    made = view(request, **place)
                    if not may_be_kept(request, made):
                        return made
                    page = keep(made)
                    cache.set(key, page, settings.PAGES_KEPT_SECONDS)
        return respond(request, page)

    return answer


def name_of(request: HttpRequest) -> str:
    """Return what this page is kept under: another name after any change of state, and when its moment is over."""
    tick = int(time.time() / settings.PAGES_KEPT_SECONDS)
    request.revision = latest_event()  # type: ignore[attr-defined]
    said = f"{request.get_host()} {request.get_full_path()} {request.revision} {tick}"  # type: ignore[attr-defined]
    return hashlib.sha256(said.encode()).hexdigest()


def may_be_kept(request: HttpRequest, made: HttpResponseBase) -> bool:
    """Whether the answer is for everybody: a whole page, without a cookie or a form's secret."""
    whole = isinstance(made, HttpResponse) and made.status_code == 200
    return whole and not made.cookies and not request.META.get("CSRF_COOKIE_NEEDS_UPDATE")


def keep(made: HttpResponseBase) -> Kept:
    assert isinstance(made, HttpResponse)
    tag = f'W/"{hashlib.sha256(made.content).hexdigest()[:32]}"'
    return Kept(gzip.compress(made.content, LEVEL, mtime=0), dict(made.items()), made.get("ETag", tag))


def respond(request: HttpRequest, page: Kept) -> HttpResponseBase:
    zipped = "gzip" in request.headers.get("Accept-Encoding", "")
    answer = HttpResponse(page.content if zipped else gzip.decompress(page.content), headers=page.headers)
    if zipped:
        answer.headers["Content-Encoding"] = "gzip"
    answer.headers.setdefault("Cache-Control", "no-cache")  # to be asked about each time
    answer.headers["ETag"] = page.tag
    patch_vary_headers(answer, ["Accept-Encoding", "Cookie"])
    if zipped and share(request):
        return answer
    found = get_conditional_response(request, etag=page.tag, response=answer)
    return found if found is not None else answer
