"""A run's log: its last lines, search, and the full download."""

from __future__ import annotations

import pytest
from django.test import Client

from leaderboard import run_logs
from leaderboard.models import Run
from scheduler.models import LogChunk
from tests.support import scene

pytestmark = pytest.mark.django_db


@pytest.fixture
def run() -> Run:
    """A run whose log chunks start and end within lines."""
    training_run = scene.create_training_run(scene.create_entry(scene.create_track(), "main"), 5)
    lease = scene.create_lease(training_run, scene.create_node())
    text = "".join(f"step {step} loss {9 - step / 100}\n" for step in range(1, 601)) + "Gradient norm is NaN\nthe end"
    for offset in range(0, len(text), 1000):
        LogChunk.objects.create(lease=lease, offset=offset, text=text[offset : offset + 1000])
    return training_run


def test_run_log_search_text_is_escaped_and_literal(client: Client, run: Run) -> None:
    page = client.get(f"{run.get_absolute_url()}?find=<b>.*").content.decode()

    assert "No line has “&lt;b&gt;.*”" in page
    assert "<b>.*" not in page


def test_run_log_search_on_page_and_in_live_json_is_equal(client: Client, run: Run) -> None:
    page = client.get(f"{run.get_absolute_url()}?find=NaN").content.decode()
    live = client.get(f"/runs/{run.pk}/live.json?find=NaN").json()["parts"]["log"]

    for text in (page, live):
        assert "<mark>NaN</mark>" in text
        assert "1 line with" in text
    assert f"/runs/{run.pk}/live.json?find=NaN" in page


def test_run_log_applies_carriage_returns() -> None:
    assert list(run_logs.iterate_lines(["10 %\r20", " %\r\x1b[31m30 %\x1b[0m\r\nnext\x07\r", "\n"])) == ["30 %", "next"]
