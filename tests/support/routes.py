"""The addresses that the site serves."""

from __future__ import annotations

from collections.abc import Iterator

from django.urls.resolvers import URLPattern, URLResolver


def list_patterns(resolver: URLResolver, prefix: str = "") -> Iterator[str]:
    """Yield the routes of a URL configuration and of all that it includes."""
    for pattern in resolver.url_patterns:
        route = prefix + str(pattern.pattern).lstrip("^").rstrip("$")
        if isinstance(pattern, URLPattern):
            yield route
        else:
            yield from list_patterns(pattern, route)
