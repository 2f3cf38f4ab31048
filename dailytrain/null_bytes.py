"""Refusal of addresses with a null byte, which PostgreSQL accepts in no text and the file system in no path."""

from __future__ import annotations

from collections.abc import Callable

from django.http import HttpRequest, JsonResponse
from django.http.response import HttpResponseBase


class NullByteFilter:
    """Middleware that answers 400 to a null byte in the path or the query string."""

    def __init__(self, get_response: Callable[[HttpRequest], HttpResponseBase]) -> None:
        self.get_response = get_response

    def __call__(self, request: HttpRequest) -> HttpResponseBase:
        query = request.META.get("QUERY_STRING", "")  # still percent-encoded, unlike the path
        if "\0" in request.path or "\0" in query or "%00" in query:
            return JsonResponse({"detail": "The address contains a null byte."}, status=400)
        return self.get_response(request)
