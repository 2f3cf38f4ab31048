"""Middleware of the site."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from django.http import HttpRequest, JsonResponse
from django.http.response import HttpResponseBase
from django.middleware.gzip import GZipMiddleware

TEXT_TYPES = ("text/", "application/json", "application/javascript", "application/atom+xml", "image/svg+xml")


class NullByteMiddleware:
    """Answer 400 to a null byte in the address, a cookie or a form: PostgreSQL stores it in no text, Linux in no path.

    Views without CSRF check are skipped: they check their own input.
    """

    def __init__(self, get_response: Callable[[HttpRequest], HttpResponseBase]) -> None:
        self.get_response = get_response

    def __call__(self, request: HttpRequest) -> HttpResponseBase:
        query = request.META.get("QUERY_STRING", "")  # still percent-encoded, unlike the path
        if "\0" in request.path or "\0" in query or "%00" in query:
            return build_null_byte_reply("address")
        if any("\0" in value for value in request.COOKIES.values()):
            return build_null_byte_reply("cookie")
        return self.get_response(request)

    def process_view(self, request: HttpRequest, view: Callable[..., Any], *_: Any) -> HttpResponseBase | None:
        if request.method != "POST" or getattr(view, "csrf_exempt", False):
            return None
        fields = (value for name, values in request.POST.lists() for value in (name, *values))
        return build_null_byte_reply("form") if any("\0" in field for field in fields) else None


def build_null_byte_reply(part: str) -> JsonResponse:
    return JsonResponse({"detail": f"The {part} contains a null byte."}, status=400)


class TextGZipMiddleware(GZipMiddleware):
    """Compress texts only: weights and pictures do not shrink, and a resumed download needs its length."""

    def process_response(self, request: HttpRequest, response: HttpResponseBase) -> HttpResponseBase:
        is_text = response.headers.get("Content-Type", "").startswith(TEXT_TYPES)
        if response.streaming or response.status_code != 200 or not is_text:
            return response
        return super().process_response(request, response)
