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
from tests.leaderboard.conftest import finish, lease, train_row


def get(client: Client, path: str, etag: str = "") -> tuple[int, object, str]:
    answer = client.get(f"/api/v1{path}", headers={"If-None-Match": etag} if etag else {})
    return answer.status_code, answer.json() if answer.content else None, answer.headers.get("ETag", "")


def test_track_shows_what_it_fixes(client: Client, track: Track) -> None:
    (found,) = client.get("/api/v1/tracks").json()
    assert (found["slug"], found["budget"], found["corpus"]) == ("small", "20steps", "python-library")
    assert found["page"] == "/tracks/small/"


def test_board_lists_judged_runs_best_first(client: Client, run: Run, node: Node) -> None:
    finish(run, node)
    better = make_run(run.entry, run.track)
    Run.objects.filter(pk=better.pk).update(state="finished", bits_per_byte=1.5)
    make_run(run.entry, run.track)
    code, rows, etag = get(client, "/tracks/small/board")
    assert code == 200
    assert [(row["id"], row["bits_per_byte"]) for row in rows] == [(better.pk, 1.5), (run.pk, 2.5)]  # type: ignore[attr-defined]
    assert get(client, "/tracks/small/board", etag)[0] == 304
    better.change_state("cancelled", since=["finished"], actor="mara", message="Disputed.")
    assert get(client, "/tracks/small/board", etag)[0] == 200


def test_run_shows_its_provenance_and_scores(client: Client, run: Run, node: Node) -> None:
    finish(run, node)
    _, found, etag = get(client, f"/runs/{run.pk}")
    assert isinstance(found, dict)
    assert {score["name"] for score in found["scores"]} == {"bits_per_byte", "nats_per_token", "blimp/acc"}
    assert (found["sha"], found["seed"], found["dataset_hash"]) == (run.entry.sha, run.seed, "d" * 64)
    assert found["bundle"] == run.entry.bundle_id
    assert get(client, f"/runs/{run.pk}", etag)[0] == 304


def test_live_of_unchanged_run_is_304(client: Client, run: Run, node: Node) -> None:
    assert run.job
    lease(run.job, node)
    _, before, etag = get(client, f"/runs/{run.pk}/live")
    assert get(client, f"/runs/{run.pk}/live", etag)[0] == 304
    metrics.store_metrics(run, [train_row(5)])
    code, after, _ = get(client, f"/runs/{run.pk}/live", etag)
    assert code == 200
    assert isinstance(before, dict)
    assert isinstance(after, dict)
    assert (before["fraction"], after["fraction"], after["node"]) == (0, 0.25, "cellar")


def test_curve_when_thinned_keeps_its_extremes(client: Client, run: Run) -> None:
    steps = range(1, 7001)
    loss = {step: 5 - math.log(step) / 3 + (0.1 if step % 2 else 0) for step in steps}
    loss[3333], loss[4444] = 50.0, 0.001
    CurvePoint.objects.bulk_create(
        [CurvePoint(run=run, series="train", step=s, tokens=s, flops=s, seconds=s, loss=loss[s]) for s in steps]
    )
    _, found, etag = get(client, f"/runs/{run.pk}/curve")
    assert isinstance(found, dict)
    shown = [point["step"] for point in found["train"]]
    assert 1000 < len(shown) <= 2000
    assert {1, 3333, 4444, 7000} <= set(shown)
    assert shown == sorted(shown)
    assert found["points"] == {"train": 7000, "dev": 0}
    assert get(client, f"/runs/{run.pk}/curve", etag)[0] == 304
    _, few, _ = get(client, f"/runs/{run.pk}/curve?limit=20")
    assert len(few["train"]) <= 20  # type: ignore[index]


def test_samples_are_plain_text(client: Client, run: Run) -> None:
    metrics.store_metrics(run, [{"kind": "sample", "step": 3, "prompt": "import", "text": "<b>x</b>"}])
    _, found, _ = get(client, f"/runs/{run.pk}/samples")
    assert found == [{"step": 3, "prompt": "import", "text": "<b>x</b>"}]


def test_lists_are_paginated(client: Client, run: Run) -> None:
    made = [run.pk, *(make_run(run.entry, run.track).pk for _ in range(4))]
    seen: list[int] = []
    before = ""
    while True:
        _, page, _ = get(client, f"/runs?limit=2{before}")
        assert isinstance(page, dict)
        seen += [row["id"] for row in page["items"]]
        if page["next"] is None:
            break
        before = f"&before={page['next']}"
    assert seen == sorted(made, reverse=True)
    _, queued, _ = get(client, "/runs?state=queued,training&track=small")
    assert [row["id"] for row in queued["items"]] == [run.pk]  # type: ignore[index]


def test_entry_lists_its_runs(client: Client, run: Run) -> None:
    _, found, _ = get(client, f"/entries/{run.entry_id}")
    assert isinstance(found, dict)
    assert [row["id"] for row in found["runs"]] == [run.pk]
    assert found["changed_files"] == []
    _, page, _ = get(client, "/entries")
    assert [row["id"] for row in page["items"]] == [run.entry_id]  # type: ignore[index]


@pytest.mark.parametrize("path", ["/runs/999", "/runs/999/curve", "/entries/999", "/tracks/none/board"])
def test_missing_row_is_404_with_a_message(client: Client, db: None, path: str) -> None:
    assert get(client, path)[:2] == (404, {"detail": "Not found."})


@pytest.mark.stored_standings
def test_tables_with_many_rows_take_the_same_queries(
    client: Client, run: Run, django_assert_num_queries: DjangoAssertNumQueries
) -> None:
    for _ in range(2):
        with django_assert_num_queries(1):
            client.get("/api/v1/runs")
        with django_assert_num_queries(1):
            client.get("/api/v1/entries")
        recompute_standings(run.track)
        with django_assert_num_queries(5):  # version, track, runs, the standings table and its rows
            client.get("/api/v1/tracks/small/board")
        for _ in range(10):
            made = make_run(run.entry, run.track)
            Run.objects.filter(pk=made.pk).update(state="finished", bits_per_byte=1.5)


@pytest.mark.stored_standings
def test_board_with_current_etag_takes_one_query(
    client: Client, run: Run, django_assert_num_queries: DjangoAssertNumQueries
) -> None:
    etag = get(client, "/tracks/small/board")[2]
    with django_assert_num_queries(1):
        assert get(client, "/tracks/small/board", etag)[0] == 304


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
    assert get(client, f"{path}?state={known}")[0] == 200
    status, answer, _ = get(client, f"{path}?state={known},unknown")
    assert status == 422
    assert answer == {"detail": answer["detail"]}  # type: ignore[index]
    assert "'unknown'" in str(answer)
