"""The pages of a run and of an entry."""

from __future__ import annotations

import json
import re

import pytest
from django.test import Client
from pytest_django import DjangoAssertNumQueries

from leaderboard.models import CurvePoint, Run, Sample, Track
from scheduler.models import LogChunk
from tests.leaderboard.views.test_page_board import words
from tests.support import boards, scene

pytestmark = pytest.mark.django_db


def test_finished_run_that_reads_later_tokens_says_so(client: Client) -> None:
    peeker = scene.night()["best"]
    found = {"nats_per_token": 0.41, "stderr": 0.02, "is_beyond_rounding": True, "bits_per_byte_uncorrected": 1.2}
    Run.objects.filter(pk=peeker.pk).update(checks={"look_ahead": found}, scoring_flops_per_token=2.5e6)
    page = words(client.get(peeker.get_absolute_url()).content)
    assert "It reads later tokens. Its score is corrected for that by +0.4100 ± 0.0200 nats per token" in page
    assert "without it the score would be 1.2000 bits per byte" in page
    assert "Scoring FLOPs 2.5 × 10⁶ per token" in page


def test_finished_run_without_a_graph_says_that_it_does_not_rank(client: Client) -> None:
    best = scene.night()["best"]
    assert "does not rank" not in words(client.get(best.get_absolute_url()).content)
    Track.objects.update(is_traced=True)
    page = words(client.get(best.get_absolute_url()).content)
    assert "It does not rank, since it was not trained from a graph. Its score is the entry’s own claim." in page


def test_a_finished_run_shows_verdict_provenance_and_scores(client: Client) -> None:
    best = scene.night()["best"]

    page = words(client.get(best.get_absolute_url()).content)

    assert "2.0412 ± 0.0071" in page
    assert scene.SHA in page
    assert "9f2c" * 16 in page
    assert "2.13.0+cpu" in page
    assert "blimp/acc 0.6213 0.0121 1.6 k" in page
    assert "It is on the board. site" in page
    assert "Look-ahead correction +0.0000 ± 0.0000 nats per token, within rounding" in page
    assert "Before training 3.8412 bits per byte; the text’s token frequencies alone 3.2207" in page


def test_a_failed_run_says_why_and_whose_fault_it_was(client: Client) -> None:
    scene.night()
    failed = Run.objects.get(state=Run.State.FAILED)

    page = words(client.get(failed.get_absolute_url()).content)

    assert "The loss became NaN at step 212." in page
    assert "The model’s own failure: it counts." in page


@pytest.mark.parametrize("state", Run.State.values)
def test_every_state_has_a_page_that_says_so(client: Client, state: str) -> None:
    made = scene.run(scene.entry(scene.track(), "main"), state=state)

    answer = client.get(made.get_absolute_url())

    assert answer.status_code == 200
    assert f"is-{state}" in answer.content.decode()


def test_the_lines_to_do_it_again_carry_the_whole_recipe(client: Client) -> None:
    track = scene.track(config={"model": {"depth": 4}, "train": {"batch": 8}})
    made = scene.run(scene.entry(track, "Smear", "smear", config={"model": {"depth": 6}}), seed=5)

    page = words(client.get(made.get_absolute_url()).content).replace(" \\", "")

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


def test_a_repository_that_is_a_folder_of_the_server_is_not_shown(client: Client) -> None:
    made = scene.run(scene.entry(scene.track(), "main", repository="/srv/secret/place"))

    assert b"/srv/secret" not in client.get(made.get_absolute_url()).content
    assert b"/srv/secret" not in client.get(made.entry.get_absolute_url()).content


def test_what_a_strangers_code_wrote_is_only_text(client: Client) -> None:
    night = scene.night()
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


def test_the_curve_can_be_drawn_over_time_without_script(client: Client) -> None:
    night = scene.night()

    page = client.get(f"/runs/{night['train'].pk}/?x=seconds").content.decode()

    assert 'data-x="seconds" aria-current="true"' in page
    assert "1\xa0min\xa030\xa0s" in page


def test_a_loss_that_is_no_number_does_not_break_the_page(client: Client) -> None:
    night = scene.night()
    CurvePoint.objects.create(
        run=night["train"], series="train", step=9999, tokens=1, flops=1, seconds=1, loss=float("inf")
    )

    assert client.get(night["train"].get_absolute_url()).status_code == 200
    answer = client.get(f"/runs/{night['train'].pk}/live.json")
    json.loads(answer.content, parse_constant=pytest.fail)


def test_a_finished_run_is_not_asked_about_again(client: Client) -> None:
    night = scene.night()

    assert client.get(f"/runs/{night['best'].pk}/live.json").json()["wait"] == 0
    assert client.get(f"/runs/{night['train'].pk}/live.json").json()["wait"] > 0


def test_the_live_answer_has_columns_of_one_length(client: Client) -> None:
    night = scene.night()

    curve = client.get(f"/runs/{night['train'].pk}/live.json").json()["curve"]

    assert len({len(column) for column in curve["train"].values()}) == 1
    assert curve["dev"]["step"] == [150, 300, 450]
    assert curve["end"]["seconds"] == pytest.approx(180)


def test_a_run_takes_few_queries(client: Client, django_assert_max_num_queries: DjangoAssertNumQueries) -> None:
    night = scene.night()

    with django_assert_max_num_queries(10):
        client.get(night["train"].get_absolute_url())


def test_an_entry_shows_its_hypothesis_and_all_its_runs(
    client: Client, django_assert_max_num_queries: DjangoAssertNumQueries
) -> None:
    smear = scene.night()["entry"]

    with django_assert_max_num_queries(10):
        page = words(client.get(smear.get_absolute_url()).content)

    assert "Keys that see one token back" in page
    assert "bits per byte 2.0412 ± 0.0071" in page
    assert "not resolvable: the baseline has runs at one compute only" in page.replace("Not", "not")
    assert "This track has no ladder" in page
    assert page.count(" Run ") == smear.runs.count() + 1


def test_an_entry_says_where_it_stands_and_what_comes_next(
    client: Client, django_assert_max_num_queries: DjangoAssertNumQueries
) -> None:
    _, entries = boards.board()

    with django_assert_max_num_queries(10):
        page = words(client.get(entries["Better"].get_absolute_url()).content)
    level = words(client.get(entries["Level"].get_absolute_url()).content)
    by_time = words(client.get(entries["Level"].get_absolute_url() + "?axis=seconds").content)

    assert re.search(r"Multiplier 1\.\d{3} ± \d\.\d % at 1\.0 × 10¹³ FLOPs: the baseline would need", page)
    assert "Next. Confirmed by another seed" in page
    assert "Provisional multiplier" in level
    assert "2 more come by themselves" in level
    assert "What the badges mean" in level
    assert "--axis seconds" in by_time


def test_a_run_says_where_its_entry_stands(
    client: Client, django_assert_max_num_queries: DjangoAssertNumQueries
) -> None:
    _, entries = boards.board()
    run = entries["Level"].runs.get()

    with django_assert_max_num_queries(10):
        page = words(client.get(run.get_absolute_url()).content)

    assert "Provisional multiplier" in page
    assert "Next." in page


def test_a_run_of_the_ladder_says_what_it_is(client: Client) -> None:
    _, entries = boards.board()
    rung = entries["baseline"].runs.get(budget="2.5e12flops", seed=2)
    twice = entries["baseline"].runs.get(budget="2e13flops", seed=1)

    assert "Baseline, 1/4 of the budget, seed 2." in words(client.get(rung.get_absolute_url()).content)
    assert "Baseline, 2 × the budget, seed 1." in words(client.get(twice.get_absolute_url()).content)
    assert "--budget 2.5e12flops" in words(client.get(rung.get_absolute_url()).content)


def test_a_voided_time_is_said_on_the_run(client: Client) -> None:
    _, entries = boards.board()
    run = boards.judged(entries["Level"], seed=9, seconds_void="Its node’s speed changed by +3.0% during the run.")

    page = words(client.get(run.get_absolute_url()).content)

    assert "Its time does not count. Its node’s speed changed by +3.0% during the run." in page
