"""Health checks of the process and of what it needs."""

from __future__ import annotations

import json
import threading
from pathlib import Path
from typing import Any

import pytest
from django.db import OperationalError
from django.db.migrations.executor import MigrationExecutor
from django.test import Client

from dailytrain import health
from tests.support.clean_environment import run_python

pytestmark = pytest.mark.processes

PROGRAM = """
import json
from django.test import Client
response = Client().get("/readyz", headers={"host": "localhost"})
print(json.dumps([response.status_code, response.headers["Cache-Control"], response.json()]))
"""


def read_readyz(home: Path, **variables: str) -> tuple[int, dict[str, Any]]:
    done = run_python(home, "manage.py", "shell", "--no-imports", "--command", PROGRAM, **variables)
    status, caching, body = json.loads(done.stdout)
    assert "no-store" in caching
    return status, body


@pytest.mark.slow
def test_readyz_is_ready_only_with_migrations_and_redis(tmp_path: Path, redis_url: str) -> None:
    status, body = read_readyz(tmp_path, REDIS_URL=redis_url)
    assert (status, body["status"], body["checks"]["redis"]) == (503, "not ready", "ok")
    assert "not applied: run manage.py migrate" in body["checks"]["migrations"]
    run_python(tmp_path, "manage.py", "migrate")
    checks = {"database": "ok", "migrations": "ok", "redis": "ok"}
    assert read_readyz(tmp_path, REDIS_URL=redis_url) == (200, {"status": "ready", "checks": checks})
    status, body = read_readyz(tmp_path, REDIS_URL="redis://127.0.0.1:1/0")
    assert (status, body["checks"]) == (503, checks | {"redis": "does not answer (ConnectionError)"})


@pytest.mark.django_db
def test_readyz_without_database_is_503(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    class ClosedConnection:
        def cursor(self) -> Any:
            raise OperationalError

    monkeypatch.setattr(health, "connection", ClosedConnection())
    monkeypatch.setitem(health.CHECKS, "migrations", lambda: "")
    response = client.get("/readyz")
    assert (response.status_code, response.json()["checks"]["database"]) == (503, "does not answer (OperationalError)")


@pytest.mark.django_db
def test_readyz_reads_migrations_again_until_all_are_applied(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    plans: list[list[str]] = [["0002"], ["0002"], []]

    class Executor(MigrationExecutor):
        def migration_plan(self, *arguments: Any, **options: Any) -> Any:
            return plans.pop(0)

    monkeypatch.setattr(health, "MigrationExecutor", Executor)
    monkeypatch.setattr(health, "is_migrated", threading.Event())
    found = [client.get("/readyz").json()["checks"]["migrations"] for _ in range(5)]
    assert found == ["1 not applied: run manage.py migrate"] * 2 + ["ok"] * 3
    assert plans == []
