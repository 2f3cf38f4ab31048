"""The pages of a run and of an entry."""

from __future__ import annotations

import json
import re

import pytest
from django.test import Client
from pytest_django import DjangoAssertNumQueries

from leaderboard import reproduction
from leaderboard.models import CurvePoint, Run, Sample, TracedGraph, Track
from scheduler.models import LogChunk
from tests.leaderboard.views.test_page_board import extract_text
from tests.support import boards, scene

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


def test_run_page_shows_benchmark_question_limit(client: Client) -> None:
    best = scene.create_night_board()["best"]
    Run.objects.filter(pk=best.pk).update(suite_seconds={"core": 300.0})
    assert "of each part of a benchmark" not in extract_text(client.get(best.get_absolute_url()).content)
    Track.objects.update(suite_limit=500)
    page = extract_text(client.get(best.get_absolute_url()).content)
    assert "Time of the benchmarks core 300 s" in page
    assert "Questions 500 of each part of a benchmark at most" in page


def test_run_page_without_graph_on_traced_track_says_unranked(client: Client) -> None:
    best = scene.create_night_board()["best"]
    assert "does not rank" not in extract_text(client.get(best.get_absolute_url()).content)
    Track.objects.update(is_traced=True)
    page = extract_text(client.get(best.get_absolute_url()).content)
    assert "It does not rank, since it was not trained from a graph. Its score is the entry’s own claim." in page


def test_run_page_of_finished_run_shows_score_and_provenance(client: Client) -> None:
    best = scene.create_night_board()["best"]

    page = extract_text(client.get(best.get_absolute_url()).content)

    assert "2.0412 ± 0.0071" in page
    assert scene.SHA in page
    assert "9f2c" * 16 in page
    assert "2.13.0+cpu" in page
    assert "Benchmark tasks Task Value Standard error blimp/acc 0.6213 0.0121" in page
    assert "It is on the board. site" in page
    assert "Look-ahead correction +0.0000 ± 0.0000 nats per token, within rounding" in page
    assert "Before training 3.8412 bits per byte; the text’s token frequencies alone 3.2207" in page


def test_run_page_says_that_products_were_rounded_to_tf32(client: Client) -> None:
    best = scene.create_night_board()["best"]
    best.checks["products"] = {"precision": "fp32", "tf32_nats_per_token": 0.5, "tf32_stderr": 0.1}
    best.save()
    assert "TF32" not in extract_text(client.get(best.get_absolute_url()).content)
    best.checks["products"] = {"precision": "tf32", "tf32_nats_per_token": -1.2e-5, "tf32_stderr": 3e-6}
    best.save()
    page = extract_text(client.get(best.get_absolute_url()).content)
    assert "Rounding products in TF32, a change of −0.000012 ± 0.000003 nats per token" in page


def test_run_page_of_failed_run_shows_reason_and_cause(client: Client) -> None:
    scene.create_night_board()
    failed = Run.objects.get(state=Run.State.FAILED)

    page = extract_text(client.get(failed.get_absolute_url()).content)

    assert "The loss became NaN at step 212." in page
    assert "The model’s own failure: it counts." in page


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


def test_run_page_draws_curve_over_time_without_script(client: Client) -> None:
    night = scene.create_night_board()

    page = client.get(f"/runs/{night['train'].pk}/?x=seconds").content.decode()

    assert 'data-x="seconds" aria-current="true"' in page
    assert "1\xa0min\xa030\xa0s" in page


def test_run_page_with_infinite_loss_opens(client: Client) -> None:
    night = scene.create_night_board()
    CurvePoint.objects.create(
        run=night["train"], series="train", step=9999, tokens=1, flops=1, seconds=1, loss=float("inf")
    )

    assert client.get(night["train"].get_absolute_url()).status_code == 200
    response = client.get(f"/runs/{night['train'].pk}/live.json")
    json.loads(response.content, parse_constant=pytest.fail)


def test_run_live_json_of_finished_run_has_no_interval(client: Client) -> None:
    night = scene.create_night_board()

    assert client.get(f"/runs/{night['best'].pk}/live.json").json()["wait"] == 0
    assert client.get(f"/runs/{night['train'].pk}/live.json").json()["wait"] > 0


def test_run_live_json_has_columns_of_one_length(client: Client) -> None:
    night = scene.create_night_board()

    curve = client.get(f"/runs/{night['train'].pk}/live.json").json()["curve"]

    assert len({len(column) for column in curve["train"].values()}) == 1
    assert curve["dev"]["step"] == [150, 300, 450]
    assert curve["end"]["seconds"] == pytest.approx(180)


def test_run_page_takes_few_queries(client: Client, django_assert_max_num_queries: DjangoAssertNumQueries) -> None:
    night = scene.create_night_board()

    with django_assert_max_num_queries(10):
        client.get(night["train"].get_absolute_url())


def test_entry_page_shows_hypothesis_and_all_runs(
    client: Client, django_assert_max_num_queries: DjangoAssertNumQueries
) -> None:
    smear = scene.create_night_board()["entry"]

    with django_assert_max_num_queries(10):
        page = extract_text(client.get(smear.get_absolute_url()).content)

    assert "Keys that see one token back" in page
    assert "bits per byte 2.0412 ± 0.0071" in page
    assert "not resolvable: the baseline has runs at one compute only" in page.replace("Not", "not")
    assert "This track has no ladder" in page
    assert page.count(" Run ") == smear.runs.count() + 1


def test_entry_page_shows_multiplier_and_next_step(
    client: Client, django_assert_max_num_queries: DjangoAssertNumQueries
) -> None:
    _, entries = boards.create_board()

    with django_assert_max_num_queries(10):
        page = extract_text(client.get(entries["Better"].get_absolute_url()).content)
    level = extract_text(client.get(entries["Level"].get_absolute_url()).content)
    by_time = extract_text(client.get(entries["Level"].get_absolute_url() + "?axis=seconds").content)

    assert re.search(r"Multiplier 1\.\d{3} ± \d\.\d % at 1\.0 × 10¹³ FLOPs: the baseline would need", page)
    assert "Next. Confirmed by another seed" in page
    assert "Provisional multiplier" in level
    assert "2 more come by themselves" in level
    assert "What the badges mean" in level
    assert "--axis seconds" in by_time


def test_run_page_shows_standing_of_entry(
    client: Client, django_assert_max_num_queries: DjangoAssertNumQueries
) -> None:
    _, entries = boards.create_board()
    run = entries["Level"].runs.get()

    with django_assert_max_num_queries(10):
        page = extract_text(client.get(run.get_absolute_url()).content)

    assert "Provisional multiplier" in page
    assert "Next." in page


def test_run_page_of_ladder_run_names_its_part(client: Client) -> None:
    _, entries = boards.create_board()
    quarter_run = entries["baseline"].runs.get(budget="2.5e12flops", seed=2)
    double_run = entries["baseline"].runs.get(budget="2e13flops", seed=1)

    assert "Baseline, 1/4 of the budget, seed 2." in extract_text(client.get(quarter_run.get_absolute_url()).content)
    assert "Baseline, 2 × the budget, seed 1." in extract_text(client.get(double_run.get_absolute_url()).content)
    assert "--budget 2.5e12flops" in extract_text(client.get(quarter_run.get_absolute_url()).content)


def test_run_page_shows_void_seconds(client: Client) -> None:
    _, entries = boards.create_board()
    run = boards.create_scored_run(
        entries["Level"], seed=9, seconds_void="Its node’s speed changed by +3.0% during the run."
    )

    page = extract_text(client.get(run.get_absolute_url()).content)

    assert "Its time does not count. Its node’s speed changed by +3.0% during the run." in page


def test_link_to_comparison_names_the_reference_runs(client: Client) -> None:
    _, entries = boards.create_board()
    run = entries["Level"].runs.filter(budget="1e13flops").order_by("pk")[0]
    Run.objects.filter(pk=run.pk).update(step=10)
    assert re.search(rf'href="/compare/\?runs={run.pk},\d+', client.get(run.get_absolute_url()).content.decode())


def test_command_to_reproduce_quotes_names_of_options(client: Client) -> None:
    config = {"model": {"depth 2 $(id) #": 1}}  # as of an entry from before such names were refused
    run = scene.create_run(scene.create_entry(scene.create_track(), "main", config=config))
    assert "'--model.depth 2 $(id) #' 1" in reproduction.write_commands(run)


def test_file_of_a_run_with_impossible_number_is_not_found(client: Client) -> None:
    assert client.get(f"/runs/{10**20}/parts/1/x").status_code == 404


def test_run_page_shows_the_graphs_parameters_before_the_training(client: Client) -> None:
    track = scene.create_track()
    run = scene.create_run(scene.create_entry(track, "New"), state="queued")
    run.graph = TracedGraph.objects.create(
        entry=run.entry, track=track, season=run.season, job=scene.create_job(run), config={}, config_hash="0" * 64,
        hash="1" * 64, summary={"parameters": 1_234_567},
    )  # fmt: skip
    run.save()

    assert "<dt>Parameters</dt><dd>1.23\xa0M</dd>" in client.get(run.get_absolute_url()).content.decode()
