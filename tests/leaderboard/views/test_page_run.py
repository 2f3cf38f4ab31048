"""The pages of a run and of an entry."""

from __future__ import annotations

import json

import pytest
from django.test import Client

from leaderboard import reproduction
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
    run = scene.create_run(scene.create_entry(scene.create_track(), "main"), state=state)

    response = client.get(run.get_absolute_url())

    assert response.status_code == 200
    assert f"is-{state}" in response.content.decode()


def test_run_page_shows_complete_reproduction_commands(client: Client) -> None:
    track = scene.create_track(config={"model": {"depth": 4}, "train": {"batch": 8}})
    run = scene.create_run(scene.create_entry(track, "Smear", "smear", config={"model": {"depth": 6}}), seed=5)

    page = extract_text(client.get(run.get_absolute_url()).content).replace(" \\", "")

    assert f"git checkout {scene.SHA}" in page
    for flag in (
        "--arch smear",
        "--budget 180s",
        "--seed 5",
        "--tokenizer bpe:8192",
        "--model.depth 6",
        "--train.batch 8",
    ):
        assert flag in page


def test_run_page_hides_server_folder_of_repository(client: Client) -> None:
    run = scene.create_run(scene.create_entry(scene.create_track(), "main", repository="/srv/secret/place"))

    assert b"/srv/secret" not in client.get(run.get_absolute_url()).content
    assert b"/srv/secret" not in client.get(run.entry.get_absolute_url()).content


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


def test_run_page_with_infinite_loss_opens(client: Client) -> None:
    night = scene.create_night_board()
    CurvePoint.objects.create(
        run=night["train"], series="train", step=9999, tokens=1, flops=1, seconds=1, loss=float("inf")
    )

    assert client.get(night["train"].get_absolute_url()).status_code == 200
    response = client.get(f"/runs/{night['train'].pk}/live.json")
    json.loads(response.content, parse_constant=pytest.fail)


def test_command_to_reproduce_quotes_names_of_options(client: Client) -> None:
    config = {"model": {"depth 2 $(id) #": 1}}  # as of an entry from before such names were refused
    run = scene.create_run(scene.create_entry(scene.create_track(), "main", config=config))
    assert "'--model.depth 2 $(id) #' 1" in reproduction.write_commands(run)


def test_file_of_a_run_with_impossible_number_is_not_found(client: Client) -> None:
    assert client.get(f"/runs/{10**20}/parts/1/x").status_code == 404
