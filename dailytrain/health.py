"""`/healthz`: the process and its database work. `/readyz`: everything that a request needs is available."""

from __future__ import annotations

import threading
from collections.abc import Callable

from django.conf import settings
from django.db import DatabaseError, connection
from django.db.migrations.executor import MigrationExecutor
from django.http import HttpRequest, JsonResponse
from django.views.decorators.cache import never_cache
from redis import Redis, RedisError

REDIS_SECONDS = 2.0
is_migrated = threading.Event()


@never_cache
def healthz(request: HttpRequest) -> JsonResponse:
    """Answer 200 if the database answers; otherwise its exception becomes a 500."""
    with connection.cursor() as cursor:
        cursor.execute("SELECT 1")
    return JsonResponse({"status": "ok"})


@never_cache
def readyz(request: HttpRequest) -> JsonResponse:
    """Answer 200 if the database and Redis answer and all migrations are applied, otherwise 503. Problems by name."""
    problems = {name: check() for name, check in CHECKS.items()}
    is_ready = not any(problems.values())
    body = {"status": "ready" if is_ready else "not ready", "checks": {k: v or "ok" for k, v in problems.items()}}
    return JsonResponse(body, status=200 if is_ready else 503)


def check_database() -> str:
    try:
        with connection.cursor() as cursor:
            cursor.execute("SELECT 1")
    except DatabaseError as error:
        return f"does not answer ({type(error).__name__})"
    return ""


def check_migrations() -> str:
    """Return how many migrations are missing. Their names are not for the public."""
    try:
        missing = count_missing_migrations()
    except DatabaseError as error:
        return f"unknown ({type(error).__name__})"
    return f"{missing} not applied: run manage.py migrate" if missing else ""


def count_missing_migrations() -> int:
    """Return how many of this process's migrations are not applied.

    Reading all of them is slow. After 0 they are not read again, since the code of a process does not change.
    """
    if is_migrated.is_set():
        return 0
    executor = MigrationExecutor(connection)
    missing = len(executor.migration_plan(executor.loader.graph.leaf_nodes()))
    if not missing:
        is_migrated.set()
    return missing


def check_redis() -> str:
    url = settings.REDIS_URL.replace("redis+socket://", "unix://")
    try:
        with Redis.from_url(url, socket_connect_timeout=REDIS_SECONDS, socket_timeout=REDIS_SECONDS) as client:
            client.ping()
    except RedisError as error:
        return f"does not answer ({type(error).__name__})"
    return ""


CHECKS: dict[str, Callable[[], str]] = {
    "database": check_database,
    "migrations": check_migrations,
    "redis": check_redis,
}
