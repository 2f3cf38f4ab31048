"""Traces of requests and tasks reach a collector over a socket; without the setting nothing is imported."""

from __future__ import annotations

import importlib.util
import subprocess
from pathlib import Path

import pytest

from tests.support.clean_environment import run_python
from tests.support.mail_server import run_chat_server

pytestmark = pytest.mark.processes

IS_INSTALLED = importlib.util.find_spec("opentelemetry") is not None
PROGRAM = """
import sys
import django
django.setup()
from django.test import Client
from dailytrain.celery import app

@app.task(name="work")
def work():
    pass

visitor = {"host": "localhost", "user-agent": "Browser-5"}
assert Client(REMOTE_ADDR="192.0.2.7").get("/accounts/login/?next=/secret/", headers=visitor).status_code == 200
assert Client().get("/healthz", headers={"host": "localhost"}).status_code == 200
work.apply().get()
# redis imports the SDK if it is installed.
print(any(name.startswith("opentelemetry.instrumentation") for name in sys.modules))
"""


def run_program(home: Path, code: int = 0, **variables: str) -> subprocess.CompletedProcess[str]:
    run_python(home, "manage.py", "migrate", "--verbosity", "0")
    return run_python(home, "-c", PROGRAM, code=code, LOG_LEVEL="ERROR", **variables)


@pytest.mark.slow
@pytest.mark.skipif(not IS_INSTALLED, reason="OpenTelemetry is not installed: pip install --group tracing")
def test_request_and_task_are_traced_without_visitor_and_health_checks(tmp_path: Path) -> None:
    with run_chat_server() as collector:
        done = run_program(tmp_path, OTEL_EXPORTER_OTLP_ENDPOINT=collector.url)

    assert done.stdout == "True\n"
    assert {post.path for post in collector.posts} == {"/v1/traces"}
    sent = "".join(post.text for post in collector.posts)
    assert [text for text in ("GET accounts/login/", "run/work", "dailytrain") if text not in sent] == []
    assert [text for text in ("healthz", "Browser-5", "192.0.2.7", "secret") if text in sent] == []


@pytest.mark.slow
def test_tracing_without_setting_imports_nothing(tmp_path: Path) -> None:
    assert run_program(tmp_path).stdout == "False\n"


@pytest.mark.slow
@pytest.mark.skipif(IS_INSTALLED, reason="OpenTelemetry is installed")
def test_tracing_setting_without_packages_is_refused_at_start(tmp_path: Path) -> None:
    done = run_program(tmp_path, code=1, OTEL_EXPORTER_OTLP_ENDPOINT="http://127.0.0.1:4318")
    assert "pip install --group tracing" in done.stderr
