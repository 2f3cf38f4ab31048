"""Text is sent compressed. Files are not: weights get no smaller, and a download that can go on needs its length."""

from __future__ import annotations

from django.http import HttpRequest, HttpResponse
from django.http.response import HttpResponseBase
from django.utils.cache import patch_vary_headers
from django.utils.text import compress_string

from dailytrain.answers import Finishing

TEXT = ("text/", "application/json", "application/javascript", "application/atom+xml", "image/svg+xml")
SHORT = 500
"""Bytes; below, the wrapping is longer than what is saved."""
PADDING = 100
"""Up to so many bytes of chance, so that a page's compressed length does not tell what is on it (BREACH)."""


class Compression(Finishing):
    def finished(self, request: HttpRequest, response: HttpResponseBase) -> HttpResponseBase:
        return compressed(request, response)


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
