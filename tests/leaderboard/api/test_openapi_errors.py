"""The OpenAPI schema names the errors of each operation, and errors are JSON with a message in `detail`."""

from __future__ import annotations

import re
from typing import Any

import pytest
from django.db import OperationalError, connection
from django.test import Client

from leaderboard.api import api

pytestmark = pytest.mark.django_db


def list_operations() -> list[tuple[str, str, set[int]]]:
    """Return the method, path and documented statuses of each operation."""
    paths = api.get_openapi_schema()["paths"]
    return [
        (method, path, {int(status) for status in operation["responses"]})
        for path, methods in paths.items()
        for method, operation in methods.items()
    ]


@pytest.mark.parametrize("value", ["0", "x", "9" * 30, "²"])
def test_answer_to_unknown_values_is_in_the_schema(client: Client, value: str) -> None:
    for method, path, statuses in list_operations():
        reply = getattr(client, method)(re.sub(r"\{\w+\}", value, path), {"limit": value, "cursor": value})
        assert reply.status_code in statuses, path
        assert reply.status_code < 400 or reply.json().keys() == {"detail"}, path


def test_api_without_database_answers_503(client: Client) -> None:
    def fail(execute: Any, sql: str, *args: Any) -> Any:
        if "campaigns_campaign" in sql:
            raise OperationalError("server closed the connection unexpectedly")
        return execute(sql, *args)

    with connection.execute_wrapper(fail):
        reply = client.get("/api/v1/campaigns")

    assert (reply.status_code, reply["Retry-After"]) == (503, "60")
    assert reply.json() == {"detail": "The database does not answer. Try again later."}
