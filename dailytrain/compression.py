"""Text is sent compressed. Files are not: weights get no smaller, and a download that can go on needs its length."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from asgiref.sync import iscoroutinefunction, markcoroutinefunction
from django.http import HttpRequest, HttpResponse
from django.http.response import HttpResponseBase
from django.utils.cache import patch_vary_headers
from django.utils.text import compress_string

TEXT = ("text/", "application/json", "application/javascript", "application/atom+xml", "image/svg+xml")
SHORT = 500
"""Bytes; below, the wrapping is longer than what is saved."""
PADDING = 100
"""Up to so many bytes of chance, so that a page's compressed length does not tell what is on it (BREACH)."""


class Compression:
    """Works under ASGI without a thread a request."""

    sync_capable = True
    async_capable = True

    def __init__(self, get_response: Callable[[HttpRequest], HttpResponseBase | Awaitable[HttpResponseBase]]) -> None:
        self.get_response = get_response
        if iscoroutinefunction(get_response):
            markcoroutinefunction(self)

    def __call__(self, request: HttpRequest) -> HttpResponseBase | Awaitable[HttpResponseBase]:
        response = self.get_response(request)
        if isinstance(response, HttpResponseBase):
            return compressed(request, response)
        return self.later(request, response)

    async def later(self, request: HttpRequest, response: Awaitable[HttpResponseBase]) -> HttpResponseBase:
        return compressed(request, await response)


def compressed(request: HttpRequest, response: HttpResponseBase) -> HttpResponseBase:
    """Return the answer, smaller where that is asked for and of use."""
    if (
        not isinstance(response, HttpResponse)
        or response.has_header("Content-Encoding")
        or response.status_code != 200  # a part of a file is none of these either
        or len(response.content) < SHORT
        or not response.get("Content-Type", "").startswith(TEXT)
    ):
        return response
    patch_vary_headers(response, ["Accept-Encoding"])
    if "gzip" not in request.headers.get("Accept-Encoding", ""):
        return response
    response.content = compress_string(response.content, max_random_bytes=PADDING)
    response.headers["Content-Length"] = str(len(response.content))
    response.headers["Content-Encoding"] = "gzip"
    if (tag := response.get("ETag", "")).startswith('"'):
        response.headers["ETag"] = f"W/{tag}"
    return response
