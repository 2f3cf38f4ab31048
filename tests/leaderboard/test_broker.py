"""Tasks without a broker: the schedule does their work."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import pytest
from django.core.cache import cache

from leaderboard import broker


@pytest.fixture
def no_server(settings: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Configure a broker that does not run."""
    settings.EMBEDDED_REDIS = tmp_path / "redis.sock"
    settings.REDIS_URL = settings.EMBEDDED_REDIS_URL = f"redis+socket://{settings.EMBEDDED_REDIS}"

    def refuse(*arguments: Any, **options: Any) -> None:
        raise ConnectionError("no server")

    monkeypatch.setattr(broker.current_app, "send_task", refuse)
    cache.clear()


def test_task_before_the_embedded_broker_runs_waits_silently(no_server: None, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        broker.send_task("recompute_standings", 1)
    assert caplog.records == []


def test_task_with_a_broker_that_is_down_warns_once(
    no_server: None, settings: Any, caplog: pytest.LogCaptureFixture
) -> None:
    settings.REDIS_URL = "redis://broker:6379"
    with caplog.at_level(logging.WARNING):
        broker.send_task("recompute_standings", 1)
        broker.send_task("recompute_standings", 2)
    assert [record.getMessage() for record in caplog.records] == [
        "recompute_standings(1) waits for the schedule: no server"
    ]
