"""Headers that every answer carries."""

from __future__ import annotations

from django.http import HttpRequest
from django.http.response import HttpResponseBase

from dailytrain.answers import Finishing


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


class ContentSecurityPolicy(Finishing):
    """No third-party request, no inline script or style."""

    def finished(self, request: HttpRequest, response: HttpResponseBase) -> HttpResponseBase:
        framed = getattr(response, "xframe_options_exempt", False)
        response.headers.setdefault("Content-Security-Policy", FRAMED if framed else POLICY)
        return response
