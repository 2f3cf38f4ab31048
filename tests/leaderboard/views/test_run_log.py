"""A run's log: its last lines, search, and the full download."""

from __future__ import annotations

import pytest
from django.core.cache import cache
from django.test import Client

from leaderboard import run_logs
from leaderboard.models import Run
from scheduler import rate_limits
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


def test_run_log_shows_complete_last_lines(run: Run) -> None:
    lines = run_logs.get_log(run).text.splitlines()

    assert len(lines) == run_logs.SHOWN_LINES
    assert lines[-2:] == ["Gradient norm is NaN", "the end"]
    assert all(line.startswith("step ") for line in lines[:-2])


def test_run_log_search_finds_text_with_line_number(run: Run) -> None:
    (match,) = run_logs.get_log(run, "norm IS nan").found

    assert (match.number, match.before, match.words, match.after) == (601, "Gradient ", "norm is NaN", "")
    first, *_ = run_logs.get_log(run, "step 1").found
    assert first.number == 1


def test_run_log_search_shows_last_matches_and_count(run: Run) -> None:
    log = run_logs.get_log(run, "loss")

    assert (log.count, len(log.found), log.found[-1].number) == (600, run_logs.SHOWN_LINES, 600)


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


def test_run_log_download_is_a_text_file(client: Client, run: Run) -> None:
    response = client.get(f"/runs/{run.pk}/log.txt")

    assert response["Content-Type"] == "text/plain; charset=utf-8"
    assert response["Content-Disposition"] == f'attachment; filename="run-{run.pk}-log.txt"'
    assert response.content.decode().count("\n") == 602
    assert client.get("/runs/999999/log.txt").status_code == 404


def test_run_log_applies_carriage_returns() -> None:
    assert list(run_logs.iterate_lines(["10 %\r20", " %\r\x1b[31m30 %\x1b[0m\r\nnext\x07\r", "\n"])) == ["30 %", "next"]


def test_run_log_of_waiting_run_is_empty(client: Client) -> None:
    waiting_run = scene.create_run(scene.create_entry(scene.create_track(), "main"), state=Run.State.WAITING)

    assert run_logs.get_log(waiting_run, "x") == run_logs.Log(words="x")
    assert client.get(f"/runs/{waiting_run.pk}/log.txt").content == b""


@pytest.mark.usefixtures("rate_limit_clock")
def test_run_log_requests_are_rate_limited(client: Client, run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(rate_limits.PER_MINUTE, "log", 2)
    cache.clear()

    responses = [
        client.get(f"/runs/{run.pk}/{path}") for path in ("log.txt", "?find=NaN", "live.json?find=N", "log.txt")
    ]

    assert [response.status_code for response in responses] == [200, 200, 429, 429]
    assert b"Too many requests from this IP address. Try again in" in responses[-1].content
    assert client.get(f"/runs/{run.pk}/").status_code == 200
