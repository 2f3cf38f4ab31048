"""The start of the API: links to its lists."""

from __future__ import annotations

from django.conf import settings
from django.http import HttpRequest
from ninja import Router
from typing_extensions import TypedDict

router = Router()
PLACES = ("tracks", "entries", "runs", "nodes", "sponsors", "queue", "calendar", "campaigns")


class StartDict(TypedDict):
    site: str
    docs: str
    openapi: str
    feed: str  # of records, as Atom
    places: dict[str, str]


@router.get("/", response=StartDict)
def start(request: HttpRequest) -> StartDict:
    """Links to the lists, the documentation and the feed."""
    root = f"{settings.SITE_URL}/api/v1"
    return {
        "site": settings.SITE_URL,
        "docs": f"{root}/docs",
        "openapi": f"{root}/openapi.json",
        "feed": f"{settings.SITE_URL}/feeds/records.atom",
        "places": {name: f"{root}/{name}" for name in PLACES},
    }
