"""What went wrong: one sentence, in `detail`."""

from __future__ import annotations

from django.http import Http404, HttpRequest, HttpResponse
from ninja import NinjaAPI
from ninja.errors import AuthenticationError, Throttled, ValidationError

NO_TOKEN = "This needs a valid token: Authorization: Bearer <token>. A maintainer makes one in the admin."  # noqa: S105
NOTHING = "There is nothing at this address."
TOO_OFTEN = "That was too often for now. Ask again after the seconds in Retry-After; If-None-Match saves much."
NAMED = 5
"""Faults of one request that are told."""


def tell(api: NinjaAPI) -> None:
    """Have the API answer its errors in our words."""

    def answer(request: HttpRequest, sentence: str, status: int) -> HttpResponse:
        return api.create_response(request, {"detail": sentence}, status=status)

    @api.exception_handler(AuthenticationError)
    def unknown_token(request: HttpRequest, error: AuthenticationError) -> HttpResponse:
        response = answer(request, NO_TOKEN, 401)
        response["WWW-Authenticate"] = "Bearer"
        return response

    @api.exception_handler(Throttled)
    def too_often(request: HttpRequest, error: Throttled) -> HttpResponse:
        response = answer(request, TOO_OFTEN, 429)
        if error.wait:
            response["Retry-After"] = str(int(error.wait))
        return response

    @api.exception_handler(Http404)
    def nothing_there(request: HttpRequest, error: Http404) -> HttpResponse:
        return answer(request, NOTHING, 404)

    @api.exception_handler(ValidationError)
    def not_understood(request: HttpRequest, error: ValidationError) -> HttpResponse:
        return answer(request, "; ".join(said(fault) for fault in error.errors[:NAMED]), 422)


def said(fault: dict[str, object]) -> str:
    """Return a fault as "sha: String should match pattern ..."."""
    place = fault["loc"]
    assert isinstance(place, tuple)
    return f"{'.'.join(str(part) for part in place[2:] or place)}: {fault['msg']}"
