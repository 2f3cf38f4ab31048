"""Forms without a cookie, protected by the headers in which browsers name the page that sends a form.

For actions that need no account: such a page is the same for all visitors, so it can be cached. Actions in the name of
a user are protected by Django's CSRF token.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any

from django.conf import settings
from django.core.exceptions import PermissionDenied
from django.http import HttpRequest, HttpResponse
from django.views.decorators.csrf import csrf_exempt

View = Callable[..., HttpResponse]
TRUSTED_SITES = ("same-origin", "none")  # Sec-Fetch-Site of a page of this site, and of an address typed in


def require_same_origin(view: View) -> View:
    """Return a view that answers 403 to a form on a page of another site."""

    @wraps(view)
    def respond(request: HttpRequest, **kwargs: Any) -> HttpResponse:
        if request.method == "POST" and not is_same_origin(request):
            raise PermissionDenied
        return view(request, **kwargs)

    return csrf_exempt(respond)


def is_same_origin(request: HttpRequest) -> bool:
    """Return whether a form comes from a page of this site.

    Scripts of a page cannot set these headers, and browsers send one of them with every form. A client that sends
    neither is no browser, so it carries no user's cookies.
    """
    if site := request.headers.get("Sec-Fetch-Site"):
        return site in TRUSTED_SITES
    origin = request.headers.get("Origin")
    return origin is None or origin in (f"{request.scheme}://{request.get_host()}", *settings.CSRF_TRUSTED_ORIGINS)
