"""Metrics, alert rules and the page in the admin."""

from __future__ import annotations

from typing import Any

import pytest
import yaml
from django.test import Client
from prometheus_client.parser import text_string_to_metric_families

from leaderboard.monitoring.alerts import ALERTS
from leaderboard.monitoring.metrics import PREFIX
from scheduler.models import Job
from tests.support import scene
from tests.support.paths import REPOSITORY

pytestmark = [pytest.mark.processes, pytest.mark.django_db]
TOKEN = "a-token-of-this-test"
RULES = REPOSITORY / "docker" / "prometheus" / "alerts.yml"


@pytest.mark.parametrize("header", ["", "Bearer", "Bearer x", TOKEN])
def test_metrics_page_with_wrong_token_is_refused(client: Client, settings: Any, header: str) -> None:
    assert client.get("/metrics", headers={"Authorization": header}).status_code == 404, "without the setting"
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
    assert {f"{PREFIX}{alert.metric}" for alert in ALERTS} <= families.keys()


def test_alert_rules_of_prometheus_have_the_limits_of_the_site() -> None:
    rules = yaml.safe_load(RULES.read_text())["groups"][0]["rules"]
    expected = [
        (alert.name, f"{PREFIX}{alert.metric} > {alert.limit:g}", f"{alert.minutes}m", alert.advice) for alert in ALERTS
    ]
    found = [(rule["alert"], rule["expr"], rule["for"], rule["annotations"]["summary"]) for rule in rules]
    assert found[1:] == expected  # the first one: the site does not answer
