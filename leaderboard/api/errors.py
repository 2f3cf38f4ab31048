"""Error responses of the API: one sentence, in `detail`."""

from __future__ import annotations

from django.http import Http404, HttpRequest, HttpResponse
from ninja import NinjaAPI
from ninja.errors import AuthenticationError, Throttled, ValidationError

TOKEN_REQUIRED = "A valid token is required: Authorization: Bearer <token>. A maintainer creates one in the admin."  # noqa: S105
NOT_FOUND = "Not found."
TOO_MANY_REQUESTS = "Too many requests. Try again after the seconds in Retry-After."
MAX_VALIDATION_ERRORS = 5  # that a response names


def add_error_handlers(api: NinjaAPI) -> None:
    def respond(request: HttpRequest, message: str, status: int) -> HttpResponse:
        return api.create_response(request, {"detail": message}, status=status)

    @api.exception_handler(AuthenticationError)
    def handle_authentication_error(request: HttpRequest, error: AuthenticationError) -> HttpResponse:
        response = respond(request, TOKEN_REQUIRED, 401)
        response["WWW-Authenticate"] = "Bearer"
        return response

    @api.exception_handler(Throttled)
    def handle_throttled(request: HttpRequest, error: Throttled) -> HttpResponse:
        response = respond(request, TOO_MANY_REQUESTS, 429)
        if error.wait:
            response["Retry-After"] = str(int(error.wait))
        return response

    @api.exception_handler(Http404)
    def handle_not_found(request: HttpRequest, error: Http404) -> HttpResponse:
        return respond(request, NOT_FOUND, 404)

    @api.exception_handler(ValidationError)
    def handle_validation_error(request: HttpRequest, error: ValidationError) -> HttpResponse:
        messages = [format_validation_error(detail) for detail in error.errors[:MAX_VALIDATION_ERRORS]]
        return respond(request, "; ".join(messages), 422)


def format_validation_error(detail: dict[str, object]) -> str:
    """Return an error as "sha: String should match pattern ..."."""
    location = detail["loc"]
    assert isinstance(location, tuple)
    return f"{'.'.join(str(part) for part in location[2:] or location)}: {detail['msg']}"
