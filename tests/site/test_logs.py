"""The log as JSON lines, and error reports, of a site in a process of its own."""

from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import Any

import pytest
import structlog
from django.test import Client

from scheduler.models import Lease
from scheduler.node_api import job_reports
from tests.support.clean_environment import run_python
from tests.support.mail_server import run_chat_server
from tests.support.pool import Agent, create_job, create_node
from trainer import protocol

pytestmark = pytest.mark.processes

PROGRAM = """
import django, logging
django.setup()
from django.test import Client
from django.urls import path
from dailytrain import urls
from dailytrain.celery import app

def break_down(request):
    logging.getLogger("leaderboard.test").info("on the way")
    secret_of_visitor = "hunter2"
    raise RuntimeError("broken")

@app.task
def work():
    logging.getLogger("leaderboard.test").info("working")

urls.urlpatterns.insert(0, path("broken", break_down))
client = Client(raise_request_exception=False)
print(client.get("/broken?token=hunter2", headers={"host": "localhost"}).headers["X-Request-ID"])
work.apply()
import sentry_sdk
sentry_sdk.flush(10)
"""


@pytest.mark.slow
def test_json_log_names_the_request_of_each_line(tmp_path: Path) -> None:
    done = run_python(tmp_path, "-c", PROGRAM, LOG_FORMAT="json")
    lines = [json.loads(line) for line in done.stderr.splitlines()]
    request = done.stdout.strip()
    of_request = {line["logger"]: line for line in lines if line.get("request_id") == request}
    assert of_request["leaderboard.test"]["message"] == "on the way"
    assert "RuntimeError: broken" in of_request["django.request"]["exception"]
    access = of_request["dailytrain.access"]
    assert (access["method"], access["path"], access["status"]) == ("GET", "/broken", 500)
    assert "hunter2" not in json.dumps(access)
    (of_task,) = (line for line in lines if line["message"] == "working")
    assert of_task["task"].endswith("work")
    assert "request_id" not in of_task


@pytest.mark.django_db
@pytest.mark.parametrize(
    ("path", "route"),
    [
        ("/try/hunter2/", "/try/<slug:token>/"),
        ("/notices/stop/hunter2/", "/notices/<slug:word>/<str:token>/"),
        ("/about/", "/about/"),
    ],
)
def test_access_log_names_the_route_of_secret_addresses(
    client: Client, caplog: pytest.LogCaptureFixture, path: str, route: str
) -> None:
    with caplog.at_level(logging.INFO, logger="dailytrain.access"):
        client.get(path)
    (record,) = (record for record in caplog.records if record.name == "dailytrain.access")
    assert record.__dict__["path"] == route
    assert f"GET {route} " in record.getMessage()


@pytest.mark.django_db
def test_lines_of_a_lease_name_job_and_lease(monkeypatch: pytest.MonkeyPatch, settings: Any) -> None:
    settings.JOB_KINDS = {"train": "tests.support.recording_handler.Recorder"}
    seen: list[dict[str, Any]] = []

    def record_context(lease: Lease, message: protocol.LogChunk) -> protocol.Acknowledgment:
        seen.append(structlog.contextvars.get_contextvars())
        return protocol.Acknowledgment(received=0)

    monkeypatch.setattr(job_reports, "store_log", record_context)
    create_job()
    claimed_job = Agent(create_node()[1]).claim_job()
    assert claimed_job.send_log(0, "a line").status_code == 200
    (context,) = seen
    assert (context["lease"], context["job"], context["node"]) == (
        claimed_job.row.pk,
        claimed_job.job.pk,
        claimed_job.row.node_id,
    )
    assert len(context["request_id"]) == 32


def test_response_carries_an_id_of_its_own(client: Client, db: None) -> None:
    first, second = (client.get("/healthz", headers={"X-Request-ID": "chosen"}).headers["X-Request-ID"] for _ in "12")
    assert len({first, second, "chosen"}) == 3
    assert not structlog.contextvars.get_contextvars()


@pytest.mark.slow
def test_unhandled_exception_is_reported_without_data_of_the_visitor(tmp_path: Path) -> None:
    with run_chat_server() as server:
        dsn = f"{server.url.replace('//', '//key@')}/1"
        run_python(tmp_path, "-c", PROGRAM, SENTRY_DSN=dsn, SENTRY_ENVIRONMENT="staging")
    (report,) = (post.text for post in server.posts if "RuntimeError" in post.text)
    event = json.loads(report.splitlines()[2])
    assert event["environment"] == "staging"
    assert event["exception"]["values"][0]["value"] == "broken"
    assert not any("vars" in frame for frame in event["exception"]["values"][0]["stacktrace"]["frames"])
    assert "hunter2" not in json.dumps(event.get("request", {}))
