"""The cache of public pages."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any

from django.conf import settings
from django.http import HttpRequest
from django.http.response import HttpResponseBase
from django.views.decorators.cache import cache_page
from django.views.decorators.csrf import csrf_protect
from django.views.decorators.http import condition
from django.views.decorators.vary import vary_on_cookie

View = Callable[..., HttpResponseBase]
ETagFunction = Callable[..., str]
REVISION_SECONDS = 30
"""Cache lifetime of one revision of a live response."""
PROXY_SECONDS = "1"
"""Value of the header `X-Accel-Expires`: how long nginx caches a response. Browsers follow Cache-Control."""


def cache_public(view: View) -> View:
    """Return a view whose page all visitors without a cookie share for `PAGE_CACHE_SECONDS`.

    `csrf_protect` sets its cookie before the page is cached, so a page with a form's token is not shared.
    """
    shared = vary_on_cookie(csrf_protect(view))

    @wraps(view)
    def respond(request: HttpRequest, *args: Any, **kwargs: Any) -> HttpResponseBase:
        if request.COOKIES:
            return view(request, *args, **kwargs)
        response: HttpResponseBase = cache_page(settings.PAGE_CACHE_SECONDS)(shared)(request, *args, **kwargs)
        if response.headers.get("Cache-Control", "").startswith("max-age"):
            response.headers["X-Accel-Expires"] = PROXY_SECONDS
        return response

    return respond


def cache_by_etag(compute_etag: ETagFunction) -> Callable[[View], View]:
    """Return a decorator of views whose response depends on the address and the ETag only, not on the visitor.

    All visitors share one response for each ETag, so it is never older than the ETag; a visitor who has it gets a 304.
    Responses to query strings are not cached: there is no bound on their number.
    """

    def decorate(view: View) -> View:
        @wraps(view)
        def respond(request: HttpRequest, *args: Any, **kwargs: Any) -> HttpResponseBase:
            etag = compute_etag(request, *args, **kwargs)
            is_shared = settings.PAGE_CACHE_SECONDS and not request.GET
            shared = cache_page(REVISION_SECONDS, key_prefix=etag)(view) if is_shared else view
            response: HttpResponseBase = condition(etag_func=lambda *_, **__: etag)(shared)(request, *args, **kwargs)
            response.headers.pop("Expires", None)
            response.headers.pop("Cache-Control", None)
            if response.status_code == 200:
                response.headers["X-Accel-Expires"] = PROXY_SECONDS  # before Cache-Control, for nginx up to 1.22
            response.headers["Cache-Control"] = "no-cache"  # browsers ask for the next revision
            return response

        return respond

    return decorate
