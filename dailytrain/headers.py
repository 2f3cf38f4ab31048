"""Headers that every answer carries."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from asgiref.sync import iscoroutinefunction, markcoroutinefunction
from django.http import HttpRequest, HttpResponseBase


def policy(form_action: str = "'self'", framed_by: str = "'none'") -> str:
    return "; ".join(
        [
            "default-src 'none'",
            "script-src 'self'",
            "style-src 'self'",
            "img-src 'self' data:",
            "connect-src 'self'",
            "font-src 'self'",
            f"form-action {form_action}",
            "base-uri 'none'",
            f"frame-ancestors {framed_by}",
        ]
    )


POLICY = policy()
FRAMED = policy(framed_by="*")
"""Of the charts that other people's pages show: those that Django's own header lets into a frame, too."""


class ContentSecurityPolicy:
    """No third-party request, no inline script or style. Works under ASGI without a thread a request."""

    sync_capable = True
    async_capable = True

    def __init__(self, get_response: Callable[[HttpRequest], HttpResponseBase | Awaitable[HttpResponseBase]]) -> None:
        self.get_response = get_response
        if iscoroutinefunction(get_response):
            markcoroutinefunction(self)

    def __call__(self, request: HttpRequest) -> HttpResponseBase | Awaitable[HttpResponseBase]:
        response = self.get_response(request)
        if isinstance(response, HttpResponseBase):
            return self.with_policy(response)
        return self.later(response)

    async def later(self, response: Awaitable[HttpResponseBase]) -> HttpResponseBase:
        return self.with_policy(await response)

    @staticmethod
    def with_policy(response: HttpResponseBase) -> HttpResponseBase:
        framed = getattr(response, "xframe_options_exempt", False)
        response.headers.setdefault("Content-Security-Policy", FRAMED if framed else POLICY)
        return response
