"""The JSON API of the site, under `/api/v1/`: all public data, and run requests of CI jobs.

One module per subject. Responses carry an ETag: send it as `If-None-Match` to get 304 until something has changed.
Lists are paginated (`pagination`). URLs and keys are stable; new ones may be added.
"""

from __future__ import annotations

import logging

from django.conf import settings
from django.db import OperationalError
from django.http import Http404, HttpRequest, HttpResponse
from ninja.errors import AuthenticationError, Throttled, ValidationError
from typing_extensions import TypedDict

from leaderboard.api import entries, pool, run_requests, tracks
from leaderboard.api.auth import AddressThrottle
from leaderboard.api.errors import DocumentedAPI, UnavailableError
from leaderboard.models.entries import web_address
from scheduler.campaigns import public_routes

logger = logging.getLogger(__name__)

DESCRIPTION = """Runs, curves and scores, readable without a token. Times are ISO 8601 in UTC. FLOPs and seconds are
plain numbers. Losses are nats per token unless they are called bits per byte. An error is one message, in `detail`.
With `?format=csv` any answer is a table."""
LISTS = ("tracks", "entries", "runs", "nodes", "sponsors", "queue", "calendar", "campaigns", "rulings", "contributors")
TOKEN_REQUIRED = "A valid token is required: Authorization: Bearer <token>. Create one at /accounts/tokens/."  # noqa: S105
MAX_VALIDATION_ERRORS = 5  # in one response

api = DocumentedAPI(
    title=settings.SITE_NAME,
    version="1",
    urls_namespace="api",
    description=DESCRIPTION,
    throttle=[AddressThrottle()],
)


class StartDict(TypedDict):
    site: str
    docs: str
    openapi: str
    repository: str  # of the site's code, to which entries add a file; empty: not public
    feed: str  # of records, as Atom
    places: dict[str, str]


@api.get("/", response=StartDict, tags=["Start"])
def start(request: HttpRequest) -> StartDict:
    """Links to the lists, the documentation and the feed."""
    root = f"{settings.SITE_URL}/api/v1"
    return {
        "site": settings.SITE_URL,
        "docs": f"{root}/docs",
        "openapi": f"{root}/openapi.json",
        "repository": settings.MAIN_REPOSITORY if web_address(settings.MAIN_REPOSITORY) else "",
        "feed": f"{settings.SITE_URL}/feeds/records.atom",
        "places": {name: f"{root}/{name}" for name in LISTS},
    }


api.add_router("", tracks.router, tags=["Tracks and boards"])
api.add_router("", entries.router, tags=["Entries"])
api.add_router("", run_requests.router, tags=["Runs"])
api.add_router("", pool.router, tags=["The pool"])
api.add_router("", public_routes.router, tags=["Campaigns"])


# --- errors: one message, in `detail` --------------------------------------------------------------------------------


def build_error_response(request: HttpRequest, message: str, status: int) -> HttpResponse:
    return api.create_response(request, {"detail": message}, status=status)


@api.exception_handler(AuthenticationError)
def handle_authentication_error(request: HttpRequest, error: AuthenticationError) -> HttpResponse:
    response = build_error_response(request, TOKEN_REQUIRED, 401)
    response["WWW-Authenticate"] = "Bearer"
    return response


@api.exception_handler(Throttled)
def handle_throttled(request: HttpRequest, error: Throttled) -> HttpResponse:
    message = "Too many requests. Try again after the seconds in Retry-After."
    response = build_error_response(request, message, 429)
    if error.wait:
        response["Retry-After"] = str(int(error.wait))
    return response


@api.exception_handler(OperationalError)
def handle_operational_error(request: HttpRequest, error: OperationalError) -> HttpResponse:
    logger.error("The database does not answer", exc_info=error)
    response = build_error_response(request, "The database does not answer. Try again later.", 503)
    response["Retry-After"] = "60"
    return response


@api.exception_handler(UnavailableError)
def handle_unavailable(request: HttpRequest, error: UnavailableError) -> HttpResponse:
    response = build_error_response(request, str(error), 503)
    response["Retry-After"] = "60"
    return response


@api.exception_handler(Http404)
def handle_not_found(request: HttpRequest, error: Http404) -> HttpResponse:
    return build_error_response(request, "Not found.", 404)


@api.exception_handler(ValidationError)
def handle_validation_error(request: HttpRequest, error: ValidationError) -> HttpResponse:
    """Name the fields: "sha: String should match pattern ..."."""
    messages = [
        f"{'.'.join(map(str, detail['loc'][2:] or detail['loc']))}: {detail['msg']}"
        for detail in error.errors[:MAX_VALIDATION_ERRORS]
    ]
    return build_error_response(request, "; ".join(messages), 422)
