"""The JSON API's class: its errors in the OpenAPI schema, and its answers as CSV."""

from __future__ import annotations

from typing import Any, Final
from urllib.parse import urlencode

from django.conf import settings
from django.http import HttpRequest, HttpResponse
from ninja import NinjaAPI
from ninja.openapi.schema import OpenAPISchema

from leaderboard.api.table import write_csv

ERROR_SCHEMA: Final = {
    "title": "ErrorReply",
    "type": "object",
    "properties": {"detail": {"type": "string", "description": "What is wrong, for people."}},
    "required": ["detail"],
}
DESCRIPTIONS: Final = {
    401: "A valid token is required.",
    403: "The token does not allow it.",
    404: "Not found.",
    409: "The entry exists with other values.",
    422: "A value is not allowed. The message names it.",
    429: "Too many requests. Try again after the seconds in `Retry-After`.",
    503: "The database or another service does not answer. Try again after the seconds in `Retry-After`.",
}


class UnavailableError(Exception):
    """A service that the request needs does not answer now. The reply has status 503 and `Retry-After`."""


class DocumentedAPI(NinjaAPI):
    """An API whose OpenAPI schema also names the errors that each operation can answer with."""

    def create_response(self, request: HttpRequest, data: Any, **kwargs: Any) -> HttpResponse:
        response = super().create_response(request, data, **kwargs)
        if response.status_code == 200 and request.method == "GET" and request.GET.get("format") == "csv":
            response.content = write_csv(data).encode()
            response["Content-Type"] = "text/csv; charset=utf-8"
            if isinstance(data, dict) and (cursor := data.get("cursor")):
                query = urlencode({**request.GET.dict(), "cursor": cursor})
                response["Link"] = f'<{settings.SITE_URL}{request.path}?{query}>; rel="next"'
        return response

    def get_openapi_schema(self, **kwargs: Any) -> OpenAPISchema:
        schema = super().get_openapi_schema(**kwargs)
        schema["components"].setdefault("schemas", {})["ErrorReply"] = ERROR_SCHEMA
        for path, methods in schema["paths"].items():
            for operation in methods.values():
                for status in list_error_statuses(path, operation):
                    operation["responses"].setdefault(status, describe_error(status))
        return schema


def list_error_statuses(path: str, operation: dict[str, Any]) -> list[int]:
    takes_values = bool(operation.get("parameters")) or "requestBody" in operation
    conditions = {401: "security" in operation, 404: "{" in path, 422: takes_values, 429: True, 503: True}
    return [status for status, applies in conditions.items() if applies]


def describe_error(status: int) -> dict[str, Any]:
    content = {"application/json": {"schema": {"$ref": "#/components/schemas/ErrorReply"}}}
    return {"description": DESCRIPTIONS[status], "content": content}
