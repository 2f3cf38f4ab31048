"""Middleware of the site."""

from __future__ import annotations

from collections.abc import Callable

from django.http import HttpRequest, JsonResponse
from django.http.response import HttpResponseBase
from django.middleware.gzip import GZipMiddleware

TEXT_TYPES = ("text/", "application/json", "application/javascript", "application/atom+xml", "image/svg+xml")


class NullByteMiddleware:
    """Answer 400 to a null byte in the address: PostgreSQL stores it in no text, the file system in no path."""

    def __init__(self, get_response: Callable[[HttpRequest], HttpResponseBase]) -> None:
        self.get_response = get_response

    def __call__(self, request: HttpRequest) -> HttpResponseBase:
        query = request.META.get("QUERY_STRING", "")  # still percent-encoded, unlike the path
        if "\0" in request.path or "\0" in query or "%00" in query:
            return JsonResponse({"detail": "The address contains a null byte."}, status=400)
        return self.get_response(request)


class TextGZipMiddleware(GZipMiddleware):
    """Compress texts only: weights and pictures do not shrink, and a resumed download needs its length."""

    def process_response(self, request: HttpRequest, response: HttpResponseBase) -> HttpResponseBase:
        is_text = response.headers.get("Content-Type", "").startswith(TEXT_TYPES)
        if response.streaming or response.status_code != 200 or not is_text:
            return response
        return super().process_response(request, response)
