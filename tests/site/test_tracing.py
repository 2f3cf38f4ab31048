"""Traces of requests and tasks reach a collector over a socket; without the setting nothing is imported."""

from __future__ import annotations

import gzip
import importlib.util
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from tests.support.clean_environment import build_clean_environment
from tests.support.paths import REPOSITORY

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


class Collector(ThreadingHTTPServer):
    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), CollectorHandler)
        self.received: list[tuple[str, bytes]] = []


class CollectorHandler(BaseHTTPRequestHandler):
    server: Collector

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        body = gzip.decompress(body) if self.headers.get("Content-Encoding") == "gzip" else body
        self.server.received.append((self.path, body))
        self.send_response(200)
        self.end_headers()

    def log_message(self, *arguments: object) -> None:
        pass


@pytest.fixture
def collector() -> Iterator[Collector]:
    with Collector() as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield server
        server.shutdown()


def run_program(home: Path, **variables: str) -> subprocess.CompletedProcess[str]:
    environment = build_clean_environment(DAILYTRAIN_HOME=str(home), LOG_LEVEL="ERROR")
    environment["PYTHONPATH"] = os.pathsep.join([str(REPOSITORY), os.environ.get("PYTHONPATH", "")])
    environment |= {"DJANGO_SETTINGS_MODULE": "dailytrain.settings", **variables}
    migrate = [sys.executable, "manage.py", "migrate", "--verbosity", "0"]
    subprocess.run(migrate, cwd=REPOSITORY, env={**environment, "OTEL_EXPORTER_OTLP_ENDPOINT": ""}, check=True)
    return subprocess.run([sys.executable, "-c", PROGRAM], env=environment, capture_output=True, text=True)


@pytest.mark.slow
@pytest.mark.skipif(not IS_INSTALLED, reason="OpenTelemetry is not installed: pip install --group tracing")
def test_request_and_task_are_traced_without_visitor_and_health_checks(collector: Collector, tmp_path: Path) -> None:
    done = run_program(tmp_path, OTEL_EXPORTER_OTLP_ENDPOINT=f"http://127.0.0.1:{collector.server_address[1]}")

    assert (done.returncode, done.stdout) == (0, "True\n"), done.stderr
    assert {path for path, _ in collector.received} == {"/v1/traces"}
    sent = b"".join(body for _, body in collector.received)
    for expected in (b"GET accounts/login/", b"run/work", b"dailytrain"):
        assert expected in sent
    assert b"healthz" not in sent
    for private in (b"Browser-5", b"192.0.2.7", b"secret"):
        assert private not in sent


@pytest.mark.slow
def test_tracing_without_setting_imports_nothing(tmp_path: Path) -> None:
    done = run_program(tmp_path)

    assert (done.returncode, done.stdout) == (0, "False\n"), done.stderr


@pytest.mark.slow
@pytest.mark.skipif(IS_INSTALLED, reason="OpenTelemetry is installed")
def test_tracing_setting_without_packages_is_refused_at_start(tmp_path: Path) -> None:
    done = run_program(tmp_path, OTEL_EXPORTER_OTLP_ENDPOINT="http://127.0.0.1:4318")

    assert done.returncode == 1
    assert "pip install --group tracing" in done.stderr
