"""The pages of a run and of an entry."""

from __future__ import annotations

import json

import pytest
from django.test import Client

from leaderboard import run_logs
from leaderboard.models import CurvePoint, Run, Sample
from scheduler.models import LogChunk
from tests.leaderboard.views.test_page_board import extract_text
from tests.support import scene

pytestmark = pytest.mark.django_db


def test_run_page_of_graphs_that_predict_differently_says_so(client: Client) -> None:
    run = scene.create_night_board()["best"]
    Run.objects.filter(pk=run.pk).update(
        checks={"training": {"nats": 0.31, "allowed": 0.002, "is_beyond_noise": True}}, passes_differ=True
    )
    page = extract_text(client.get(run.get_absolute_url()).content)
    assert "Its training graph predicts otherwise than its evaluation graph, so its entry has no rank." in page
    assert "By the training graph +0.3100 nats per token; its random numbers explain 0.0020" in page


def test_run_page_of_look_ahead_model_shows_correction(client: Client) -> None:
    run = scene.create_night_board()["best"]
    look_ahead = {"nats_per_token": 0.41, "stderr": 0.02, "is_beyond_rounding": True, "bits_per_byte_uncorrected": 1.2}
    Run.objects.filter(pk=run.pk).update(checks={"look_ahead": look_ahead}, scoring_flops_per_token=2.5e6)
    page = extract_text(client.get(run.get_absolute_url()).content)
    assert "It reads later tokens, so its entry has no rank." in page
    assert "Its score is corrected for that by +0.4100 ± 0.0200 nats per token" in page
    assert "without it the score would be 1.2000 bits per byte" in page
    assert "Scoring FLOPs 2.5 × 10⁶ per token" in page


@pytest.mark.parametrize("state", Run.State.values)
def test_run_page_of_each_state_shows_it(client: Client, state: str) -> None:
    entry = scene.create_entry(scene.create_track(), "main", repository="/srv/secret/place")
    verdict = {"is_behind": True, "look_fraction": 0.25, "look_behind": 0.1, "look_error": 0.01}
    run = scene.create_run(entry, state=state, **(verdict if state == Run.State.STOPPED else {}))

    response = client.get(run.get_absolute_url())

    assert response.status_code == 200
    assert f"is-{state}" in response.content.decode()
    assert b"/srv/secret" not in response.content
    assert b"/srv/secret" not in client.get(entry.get_absolute_url()).content


def test_run_page_escapes_samples_and_log(client: Client) -> None:
    night = scene.create_night_board()
    Sample.objects.create(run=night["train"], step=521, prompt="<b>", text="<script>alert(1)</script>")
    LogChunk.objects.create(
        lease=night["train"].job.leases.get(), offset=70, text="10 %\r20 %\r\x1b[31m<img src=x>\x1b[0m\x07 done\r\n"
    )

    page = client.get(night["train"].get_absolute_url()).content.decode()
    live = client.get(f"/runs/{night['train'].pk}/live.json").json()

    for text in (page, live["parts"]["log"]):
        assert "<script>alert" not in text
        assert "<img" not in text
        assert "&lt;img src=x&gt; done" in text
        assert "10 %" not in text
    assert "\x1b" not in page
    point = {"step": 9999, "tokens": 1, "flops": 1, "seconds": 1, "loss": float("inf")}
    CurvePoint.objects.create(run=night["train"], series="train", **point)
    assert client.get(night["train"].get_absolute_url()).status_code == 200
    json.loads(client.get(f"/runs/{night['train'].pk}/live.json").content, parse_constant=pytest.fail)


@pytest.fixture
def run() -> Run:
    """A run whose log chunks start and end within lines."""
    training_run = scene.create_training_run(scene.create_entry(scene.create_track(), "main"), 5)
    lease = scene.create_lease(training_run, scene.create_node())
    text = "".join(f"step {step} loss {9 - step / 100}\n" for step in range(1, 601)) + "Gradient norm is NaN\nthe end"
    for offset in range(0, len(text), 1000):
        LogChunk.objects.create(lease=lease, offset=offset, text=text[offset : offset + 1000])
    return training_run


def test_run_log_search_is_literal_and_equal_in_live_json(client: Client, run: Run) -> None:
    page = client.get(f"{run.get_absolute_url()}?find=<b>.*").content.decode()
    assert "No line has “&lt;b&gt;.*”" in page
    assert "<b>.*" not in page
    page = client.get(f"{run.get_absolute_url()}?find=NaN").content.decode()
    live = client.get(f"/runs/{run.pk}/live.json?find=NaN").json()["parts"]["log"]

    for text in (page, live):
        assert "<mark>NaN</mark>" in text
        assert "1 line with" in text
    assert f"/runs/{run.pk}/live.json?find=NaN" in page


def test_run_log_applies_carriage_returns() -> None:
    assert list(run_logs.iterate_lines(["10 %\r20", " %\r\x1b[31m30 %\x1b[0m\r\nnext\x07\r", "\n"])) == ["30 %", "next"]
