from __future__ import annotations

import math

import pytest
from django.test import Client
from pytest_django import DjangoAssertNumQueries

from leaderboard.job_handlers import metrics
from leaderboard.models import CurvePoint, Run, Track
from leaderboard.rankings.standings_store import recompute_standings
from leaderboard.runs import make_run
from scheduler.models import Node
from tests.leaderboard.conftest import build_train_row, finish_run
from tests.support.node_jobs import lease_job


def get_json(client: Client, path: str, etag: str = "") -> tuple[int, object, str]:
    response = client.get(f"/api/v1{path}", headers={"If-None-Match": etag} if etag else {})
    return response.status_code, response.json() if response.content else None, response.headers.get("ETag", "")


def test_track_json_has_its_settings(client: Client, track: Track) -> None:
    (track_data,) = client.get("/api/v1/tracks").json()
    assert (track_data["slug"], track_data["budget"], track_data["corpus"]) == ("small", "20steps", "python-library")
    assert track_data["page"] == "/tracks/small/"


def test_board_lists_scored_runs_best_first(client: Client, run: Run, node: Node) -> None:
    finish_run(run, node)
    better_run = make_run(run.entry, run.track)
    Run.objects.filter(pk=better_run.pk).update(state="finished", bits_per_byte=1.5)
    make_run(run.entry, run.track)
    code, rows, etag = get_json(client, "/tracks/small/board")
    assert code == 200
    assert [(row["id"], row["bits_per_byte"]) for row in rows] == [(better_run.pk, 1.5), (run.pk, 2.5)]  # type: ignore[attr-defined]
    assert get_json(client, "/tracks/small/board", etag)[0] == 304
    Run.objects.filter(pk=better_run.pk).update(state="cancelled", revision=9)
    assert get_json(client, "/tracks/small/board", etag)[0] == 200


def test_run_shows_its_provenance_and_scores(client: Client, run: Run, node: Node) -> None:
    finish_run(run, node)
    _, run_data, etag = get_json(client, f"/runs/{run.pk}")
    assert isinstance(run_data, dict)
    assert {score["name"] for score in run_data["scores"]} == {"bits_per_byte", "nats_per_token", "blimp/acc"}
    assert (run_data["sha"], run_data["seed"], run_data["dataset_hash"]) == (run.entry.sha, run.seed, "d" * 64)
    assert run_data["bundle"] == run.entry.bundle_id
    assert get_json(client, f"/runs/{run.pk}", etag)[0] == 304


def test_live_of_unchanged_run_is_304(client: Client, run: Run, node: Node) -> None:
    assert run.job
    lease_job(run.job, node)
    _, first, etag = get_json(client, f"/runs/{run.pk}/live")
    assert get_json(client, f"/runs/{run.pk}/live", etag)[0] == 304
    metrics.store_metrics(run, [build_train_row(5)])
    code, second, _ = get_json(client, f"/runs/{run.pk}/live", etag)
    assert code == 200
    assert isinstance(first, dict)
    assert isinstance(second, dict)
    assert (first["fraction"], second["fraction"], second["node"]) == (0, 0.25, "cellar")


def test_downsampled_curve_keeps_its_extremes(client: Client, run: Run) -> None:
    steps = range(1, 7001)
    loss = {step: 5 - math.log(step) / 3 + (0.1 if step % 2 else 0) for step in steps}
    loss[3333], loss[4444] = 50.0, 0.001
    CurvePoint.objects.bulk_create(
        [CurvePoint(run=run, series="train", step=s, tokens=s, flops=s, seconds=s, loss=loss[s]) for s in steps]
    )
    _, curve, etag = get_json(client, f"/runs/{run.pk}/curve")
    assert isinstance(curve, dict)
    steps_listed = [point["step"] for point in curve["train"]]
    assert 1000 < len(steps_listed) <= 2000
    assert {1, 3333, 4444, 7000} <= set(steps_listed)
    assert steps_listed == sorted(steps_listed)
    assert curve["points"] == {"train": 7000, "dev": 0}
    assert get_json(client, f"/runs/{run.pk}/curve", etag)[0] == 304
    _, short_curve, _ = get_json(client, f"/runs/{run.pk}/curve?limit=20")
    assert len(short_curve["train"]) <= 20  # type: ignore[index]


def test_samples_are_plain_text(client: Client, run: Run) -> None:
    metrics.store_metrics(run, [{"kind": "sample", "step": 3, "prompt": "import", "text": "<b>x</b>"}])
    _, samples, _ = get_json(client, f"/runs/{run.pk}/samples")
    assert samples == [{"step": 3, "prompt": "import", "text": "<b>x</b>"}]


def test_lists_are_paginated(client: Client, run: Run) -> None:
    run_ids = [run.pk, *(make_run(run.entry, run.track).pk for _ in range(4))]
    listed_ids: list[int] = []
    cursor = ""
    while True:
        _, page, _ = get_json(client, f"/runs?limit=2{cursor}")
        assert isinstance(page, dict)
        listed_ids += [row["id"] for row in page["items"]]
        if page["next"] is None:
            break
        cursor = f"&before={page['next']}"
    assert listed_ids == sorted(run_ids, reverse=True)
    _, queued, _ = get_json(client, "/runs?state=queued,training&track=small")
    assert [row["id"] for row in queued["items"]] == [run.pk]  # type: ignore[index]


def test_entry_lists_its_runs(client: Client, run: Run) -> None:
    _, entry_data, _ = get_json(client, f"/entries/{run.entry_id}")
    assert isinstance(entry_data, dict)
    assert [row["id"] for row in entry_data["runs"]] == [run.pk]
    assert entry_data["changed_files"] == []
    _, page, _ = get_json(client, "/entries")
    assert [row["id"] for row in page["items"]] == [run.entry_id]  # type: ignore[index]


@pytest.mark.parametrize("path", ["/runs/999", "/runs/999/curve", "/entries/999", "/tracks/none/board"])
def test_missing_row_is_404_with_a_message(client: Client, db: None, path: str) -> None:
    assert get_json(client, path)[:2] == (404, {"detail": "Not found."})


@pytest.mark.stored_standings
def test_tables_with_many_rows_take_the_same_queries(
    client: Client, run: Run, django_assert_num_queries: DjangoAssertNumQueries
) -> None:
    for _ in range(2):
        for _ in range(10):
            new_run = make_run(run.entry, run.track)
            Run.objects.filter(pk=new_run.pk).update(state="finished", bits_per_byte=1.5)
        with django_assert_num_queries(2):  # runs, their scores
            client.get("/api/v1/runs")
        with django_assert_num_queries(1):
            client.get("/api/v1/entries")
        recompute_standings(run.track)
        with django_assert_num_queries(6):  # version, track, runs, their scores, the standings table and its rows
            client.get("/api/v1/tracks/small/board")


@pytest.mark.stored_standings
def test_board_with_current_etag_takes_one_query(
    client: Client, run: Run, django_assert_num_queries: DjangoAssertNumQueries
) -> None:
    etag = get_json(client, "/tracks/small/board")[2]
    with django_assert_num_queries(1):
        assert get_json(client, "/tracks/small/board", etag)[0] == 304


def test_docs_page_requests_no_other_host(client: Client, db: None) -> None:
    page = client.get("/api/v1/docs")
    assert page.status_code == 200
    text = page.content.decode()
    assert "//cdn" not in text
    assert "https://" not in text
    assert "default-src 'none'" in page.headers["Content-Security-Policy"]
    paths = client.get("/api/v1/openapi.json").json()["paths"]
    assert {"/api/v1/runs", "/api/v1/runs/{run_id}/curve", "/api/v1/tracks/{slug}/board"} <= set(paths)


@pytest.mark.parametrize(("path", "known"), [("/runs", "finished"), ("/entries", "approved")])
def test_list_with_unknown_state_is_422(client: Client, db: None, path: str, known: str) -> None:
    assert get_json(client, f"{path}?state={known}")[0] == 200
    status, response, _ = get_json(client, f"{path}?state={known},unknown")
    assert status == 422
    assert response == {"detail": response["detail"]}  # type: ignore[index]
    assert "'unknown'" in str(response)
