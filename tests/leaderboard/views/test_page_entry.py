"""The pages of an entry and of a run."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.test import Client
from django.urls import reverse

from leaderboard.models import CurvePoint, Run, Sample, TracedGraph, Track
from leaderboard.submissions import intake
from scheduler import storage
from scheduler.models import JobFile, LogChunk
from tests.leaderboard.conftest import Repository
from tests.leaderboard.views.test_page_board import extract_text
from tests.support import boards, scene
from tests.support.graph_jobs import store_graph

pytestmark = pytest.mark.django_db


def test_entry_page_groups_runs_by_budget_with_multiplier(client: Client) -> None:
    _, entries = boards.create_board()
    for seed in (1, 2):
        boards.create_scored_run(entries["Better"], 1.4, part=0.25, seed=seed)
    scene.create_run(entries["Better"], seed=77, state=Run.State.QUEUED)

    response = client.get(entries["Better"].get_absolute_url())
    page = extract_text(response.content)

    assert page.index("1.0 × 10¹³ FLOPs the whole budget") < page.index("2.5 × 10¹² FLOPs 1/4 of the budget")
    assert page.count("multiplier 1.") >= 2
    assert "Multiplier by scale: 1/4 of the budget" in response.content.decode().replace("\xa0", " ")
    assert "waiting" in page
    assert "bits per byte 1.9838 −0.0168 from the baseline on the same text" in page
    baseline = extract_text(client.get(entries["baseline"].get_absolute_url()).content)
    assert "1 by definition: the board compares with it. Its own runs, read off its ladder, give " in baseline


def test_entry_page_compares_graph_with_reference(client: Client) -> None:
    track, entries = boards.create_board()
    Track.objects.update(is_traced=True)
    track.season.caps = {"parameters": 100_000}
    track.season.save()
    reference = store_graph(entries["baseline"])
    calls = {"features": {"aten::linear": 6, "aten::cumsum": 2}, "logits": {"aten::linear": 1}}
    graph = store_graph(entries["Better"], calls=calls, flops_per_token=880_000.0, scoring_flops_per_token=250_000.0)
    page = extract_text(client.get(entries["Better"].get_absolute_url()).content)
    assert "Not compared with a reference. The baseline has no graph of the same configuration yet." in page
    graph.baseline_graph = reference
    graph.save()
    page = extract_text(client.get(entries["Better"].get_absolute_url()).content)
    assert graph.hash in page
    assert "training FLOPs per token 8.8 × 10⁵ 8.0 × 10⁵ +10 %" in page
    assert "scoring FLOPs per token 2.5 × 10⁵ 2.5 × 10⁵ equal" in page
    assert "trained parameters 120,000 100,000" in page
    assert "aten::linear 79.5 %" in page
    assert "aten::linear 7 −2" in page
    assert "aten::cumsum 2 +2" in page
    detail = client.get(f"/api/v1/entries/{entries['Better'].pk}").json()
    assert detail["graph"]["hash"] == graph.hash


def store_graph_files(graph: TracedGraph, **files: Any) -> None:
    for name, content in files.items():
        blob = storage.store_bytes(json.dumps(content).encode())
        JobFile.objects.create(job=graph.job, path=f"graph/{name}.json", blob=blob)


def test_entry_page_shows_changed_constant_of_evaluation_graph(client: Client) -> None:
    _, entries = boards.create_board()
    Track.objects.update(is_traced=True)
    graph, reference = (store_graph(entries[name]) for name in ("Better", "baseline"))
    graph.baseline_graph = reference
    graph.save()
    calls = [{"operator": "aten::mul.Tensor", "arguments": ["%tokens", value]} for value in (0.5, 0.25)]
    graphs = [{"features": {"inputs": [], "calls": [call], "outputs": ["%0"]}} for call in calls]
    store_graph_files(reference, init={}, train=graphs[0], eval=graphs[0])
    store_graph_files(graph, init={}, train=graphs[0], eval=graphs[1])
    page = extract_text(client.get(entries["Better"].get_absolute_url()).content)
    assert "Training graph It equals the reference’s." in page
    evaluation = page[page.index("Evaluation graph 2 lines differ") :]
    for name in ("the reference’s", "its training graph"):
        assert f"2 lines differ from {name}" in evaluation
    for sign, value in (("−", 0.5), ("+", 0.25)):
        assert len(re.findall(rf"{re.escape(sign)} \S+ = aten::mul\.Tensor\(%tokens, {value}\)", evaluation)) == 2
    assert "Initialization, constants and stored tensors It equals the reference’s." in evaluation
    client.force_login(User.objects.create_superuser("root"))
    review = extract_text(client.get(reverse("admin:leaderboard_entry_change", args=[entries["Better"].pk])).content)
    assert f"Compared with the reference: {entries['baseline'].title}." in review
    assert review.count("= aten::mul.Tensor(%tokens, 0.25)") == 2


def test_entry_page_shows_escaped_diff_to_everyone(client: Client, main_repository: Repository, track: Track) -> None:
    main_repository.git("checkout", "--quiet", "-b", "idea")
    model = "class Model:\n    keys = '<b>two</b>\u202e'\n"
    sha = main_repository.commit("An idea", {"trainer/models/smear.py": model, "README.md": "Another train.\n"})
    submitted_entry = intake.submit_entry(str(main_repository.path), sha, "An idea", "smear", track)
    response = client.get(submitted_entry.get_absolute_url())
    page = extract_text(response.content)

    assert "2 files, +2 −2 against main" in page
    assert page.index("trainer/models/smear.py +1 −1") < page.index("README.md +1 −1 not trained with")
    assert b"<b>two</b>" not in response.content
    assert "⟨U+202E⟩" in page, "hidden characters are shown"


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
