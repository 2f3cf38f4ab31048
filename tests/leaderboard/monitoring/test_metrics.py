"""Metrics, alert rules and the page in the admin."""

from __future__ import annotations

import shutil
import subprocess
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.test import Client
from django.utils import timezone
from django_celery_beat.models import PeriodicTask
from prometheus_client.parser import text_string_to_metric_families

from dailytrain import schedule
from leaderboard import permissions
from leaderboard.management.commands.write_monitoring_files import build_files
from leaderboard.models import OutboxMessage
from leaderboard.monitoring.alerts import ALERTS, list_measurements
from leaderboard.monitoring.metrics import PREFIX, collect_metrics
from scheduler.models import Job, Node
from tests.support import scene
from tests.support.pool import create_job

pytestmark = [pytest.mark.processes, pytest.mark.django_db]
TOKEN = "a-token-of-this-test"


def read_metrics() -> dict[tuple[str, str], float]:
    """Return the values now by metric and label."""
    return {(row.metric, row.label): row.value for row in list_measurements(timezone.now())}


def test_metrics_page_without_setting_is_404(client: Client) -> None:
    assert client.get("/metrics", headers={"Authorization": "Bearer "}).status_code == 404


@pytest.mark.parametrize("header", ["", "Bearer", "Bearer x", TOKEN])
def test_metrics_page_with_wrong_token_is_refused(client: Client, settings: Any, header: str) -> None:
    settings.METRICS_TOKEN = TOKEN
    assert client.get("/metrics", headers={"Authorization": header}).status_code == 401


def test_metrics_page_is_valid_and_counts_the_queue(client: Client, settings: Any) -> None:
    settings.METRICS_TOKEN = TOKEN
    scene.create_night_board()
    queued = Job.objects.filter(kind="train", state=Job.State.QUEUED).count()

    reply = client.get("/metrics", headers={"Authorization": f"Bearer {TOKEN}"})

    families = {family.name: family for family in text_string_to_metric_families(reply.text)}
    counts = {sample.labels["kind"]: sample.value for sample in families["dailytrain_queue_jobs"].samples}
    assert queued
    assert counts["train"] == queued


def test_queue_metrics_follow_the_oldest_job() -> None:
    create_job(kind="score", queued_at=timezone.now() - timedelta(hours=2))
    create_job(kind="score")

    values = read_metrics()

    assert values["queue_jobs", "score"] == 2
    assert 7200 <= values["queue_oldest_seconds", "score"] < 7300
    assert 7200 <= values["score_wait_without_scorer_seconds", ""] < 7300
    Node.objects.create(name="scorer", trusted=True, state=Node.State.ONLINE)
    assert read_metrics()["score_wait_without_scorer_seconds", ""] == 0


def test_beat_and_webhook_metrics_are_ages() -> None:
    now = timezone.now()
    schedule.install()
    PeriodicTask.objects.update(last_run_at=now - timedelta(minutes=5))
    OutboxMessage.objects.create(kind="github.delivery", key="1", created_at=now - timedelta(minutes=20))

    rows = {row.metric: row for row in list_measurements(now)}

    assert rows["beat_age_seconds"].value == 300
    assert rows["beat_age_seconds"].is_alerting
    assert rows["webhook_lag_seconds"].value == 1200
    assert rows["webhook_lag_seconds"].is_alerting


def test_every_alert_names_a_metric() -> None:
    scene.create_night_board()
    names = {family.name.removeprefix(PREFIX) for family in collect_metrics(timezone.now())}
    assert {alert.metric for alert in ALERTS} <= names


def test_monitoring_files_are_up_to_date() -> None:
    for path, text in build_files().items():
        assert path.read_text() == text, "run: manage.py write_monitoring_files"


@pytest.mark.skipif(shutil.which("promtool") is None, reason="promtool is not installed")
def test_alert_rules_are_accepted_by_promtool() -> None:
    (rules,) = (path for path in build_files() if path.suffix == ".yml")
    process = subprocess.run(
        ["promtool", "check", "rules", str(Path(rules))], capture_output=True, text=True, check=False
    )
    assert process.returncode == 0, process.stdout + process.stderr


def test_monitoring_page_is_for_maintainers(client: Client) -> None:
    scene.create_night_board()
    for name, role in (("cora", permissions.COORDINATOR), ("max", permissions.MAINTAINER)):
        user = User.objects.create_user(name)
        permissions.grant_role(user, role, None)
        client.force_login(user)
        reply = client.get("/admin/monitoring/")
        assert reply.status_code == (200 if role == permissions.MAINTAINER else 403)
        assert ("/admin/monitoring/" in client.get("/admin/").text) == (role == permissions.MAINTAINER)
    assert "Queued jobs by kind" in reply.text
