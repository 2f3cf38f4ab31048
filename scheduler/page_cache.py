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
from django.views.decorators.vary import vary_on_cookie

View = Callable[..., HttpResponseBase]


def cache_public(view: View) -> View:
    """Return a view whose page all visitors without a cookie share for `PAGE_CACHE_SECONDS`.

    `csrf_protect` sets its cookie before the page is cached, so a page with a form's token is not shared.
    """
    shared = vary_on_cookie(csrf_protect(view))

    @wraps(view)
    def respond(request: HttpRequest, *args: Any, **kwargs: Any) -> HttpResponseBase:
        if request.COOKIES:
            return view(request, *args, **kwargs)
        return cache_page(settings.PAGE_CACHE_SECONDS)(shared)(request, *args, **kwargs)

    return respond
