"""Pooled connections to PostgreSQL survive a restart of the server: the next request gets a new one."""

from __future__ import annotations

import pytest
from django.conf import settings
from django.db import DEFAULT_DB_ALIAS, connection
from django.db.utils import ConnectionHandler

pytestmark = [
    pytest.mark.sql,
    pytest.mark.django_db,
    pytest.mark.skipif("postgresql" not in settings.DATABASES["default"]["ENGINE"], reason="needs PostgreSQL"),
]


def test_request_after_server_closed_the_connection_succeeds() -> None:
    pooled = {**connection.settings_dict, "OPTIONS": {"pool": {"min_size": 1, "max_size": 1}}}
    web = ConnectionHandler({DEFAULT_DB_ALIAS: pooled})[DEFAULT_DB_ALIAS]
    try:
        before = read_process_id(web)
        with connection.cursor() as cursor:
            cursor.execute("SELECT pg_terminate_backend(%s, 5000)", [before])
        assert read_process_id(web) != before
    finally:
        web.close_pool()


def read_process_id(web: object) -> int:
    """Return the id of the server process, as one request would: its connection returns to the pool."""
    with web.cursor() as cursor:  # type: ignore[attr-defined]
        cursor.execute("SELECT pg_backend_pid()")
        found: int = cursor.fetchone()[0]
    web.close()  # type: ignore[attr-defined]
    return found
