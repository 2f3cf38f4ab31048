"""Forms without a cookie: a POST is taken from this site's own pages only, as the browser says where it is from.

For what anybody may do without an account: a page with such a form is the same for all visitors, so it can be kept for
them. Whatever is done in somebody's name has Django's token.
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
OURS = ("same-origin", "none")
"""Values of Sec-Fetch-Site: a page of this site, and the reader's own hand."""


def from_our_pages(view: View) -> View:
    """Return a view that answers 403 to a form of another site's page."""

    @wraps(view)
    def answer(request: HttpRequest, **place: Any) -> HttpResponse:
        if request.method == "POST" and not is_ours(request):
            raise PermissionDenied
        return view(request, **place)

    return csrf_exempt(answer)


def is_ours(request: HttpRequest) -> bool:
    """No page can change these two headers, and browsers send one of them with every form. Whoever sends neither is a
    program, and plays with nobody's browser."""
    if site := request.headers.get("Sec-Fetch-Site"):
        return site in OURS
    origin = request.headers.get("Origin")
    return origin is None or origin in (f"{request.scheme}://{request.get_host()}", *settings.CSRF_TRUSTED_ORIGINS)
