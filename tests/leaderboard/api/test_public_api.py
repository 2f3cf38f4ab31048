"""The public API: pagination, ETags, the pool, rate limits and the documentation page."""

from __future__ import annotations

import csv
import io
import json
import re
from typing import Any

import pytest
from django.db import OperationalError, connection
from django.test import Client
from openapi_pydantic import OpenAPI
from pytest_django import DjangoAssertNumQueries

from leaderboard.api.table import write_csv
from leaderboard.job_handlers import metrics
from leaderboard.models import Run, Score
from leaderboard.rankings.standings_store import recompute_standings
from leaderboard.runs import make_run
from scheduler.models import Node
from tests.leaderboard.conftest import finish_run
from tests.support import boards, scene

pytestmark = pytest.mark.django_db
API = "/api/v1"
LISTS = ("/", "/tracks", "/entries", "/runs", "/nodes", "/sponsors", "/queue", "/calendar", "/campaigns")


@pytest.mark.parametrize("path", LISTS)
def test_list_without_token_has_an_etag(client: Client, path: str) -> None:
    scene.create_night_board()
    first = client.get(f"{API}{path}")
    assert first.status_code == 200
    if path not in ("/", "/queue"):  # its estimates change with time
        assert client.get(f"{API}{path}", headers={"If-None-Match": first["ETag"]}).status_code == 304


def test_cursor_pages_through_all_rows_while_others_are_added(client: Client, run: Run) -> None:
    run_ids = {run.pk, *(make_run(run.entry, run.track).pk for _ in range(4))}
    listed_ids: list[int] = []
    cursor: int | None = 2**63 - 1
    while cursor is not None:
        page = client.get(f"{API}/runs?limit=2&cursor={cursor}").json()
        listed_ids += [row["id"] for row in page["items"]]
        cursor = page["cursor"]
        make_run(run.entry, run.track)
    assert listed_ids == sorted(run_ids, reverse=True)


def test_openapi_document_is_valid_and_lists_all_paths(client: Client) -> None:
    document = client.get(f"{API}/openapi.json").json()
    OpenAPI.model_validate(document)
    assert {f"{API}{path}" for path in LISTS} <= set(document["paths"])
    operations = [operation for methods in document["paths"].values() for operation in methods.values()]
    assert len({operation["operationId"] for operation in operations}) == len(operations)
    for reference in re.findall(r'"\$ref": "#/components/schemas/([^"]+)"', json.dumps(document)):
        assert reference in document["components"]["schemas"]


def test_api_without_database_answers_503(client: Client) -> None:
    def fail(execute: Any, sql: str, *args: Any) -> Any:
        if "campaigns_campaign" in sql:
            raise OperationalError("server closed the connection unexpectedly")
        return execute(sql, *args)

    with connection.execute_wrapper(fail):
        reply = client.get("/api/v1/campaigns")

    assert (reply.status_code, reply["Retry-After"]) == (503, "60")
    assert reply.json() == {"detail": "The database does not answer. Try again later."}


def get_json(client: Client, path: str, etag: str = "") -> tuple[int, object, str]:
    response = client.get(f"/api/v1{path}", headers={"If-None-Match": etag} if etag else {})
    return response.status_code, response.json() if response.content else None, response.headers.get("ETag", "")


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
    assert get_json(client, f"/runs/{run.pk}/scores")[1] == run_data["scores"]
    _, events, _ = get_json(client, f"/runs/{run.pk}/events")
    assert set(events[0]) == {"at", "actor", "sentence"}  # type: ignore[index]
    metrics.store_metrics(run, [{"kind": "sample", "step": 3, "prompt": "import", "text": "<b>x</b>"}])
    samples = [{"step": 3, "prompt": "import", "text": "<b>x</b>"}]
    assert get_json(client, f"/runs/{run.pk}/samples")[1] == samples


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
        with django_assert_num_queries(2):  # entries, their multipliers
            client.get("/api/v1/entries")
        recompute_standings(run.track)
        with django_assert_num_queries(6):  # version, track, runs, their scores, the standings table and its rows
            client.get("/api/v1/tracks/small/board")


@pytest.mark.parametrize(("path", "known"), [("/runs", "finished"), ("/entries", "approved")])
def test_list_with_unknown_state_is_422(client: Client, db: None, path: str, known: str) -> None:
    assert get_json(client, f"{path}?state={known}")[0] == 200
    status, response, _ = get_json(client, f"{path}?state={known},unknown")
    assert status == 422
    assert response == {"detail": response["detail"]}  # type: ignore[index]
    assert "'unknown'" in str(response)


BOARD = "/api/v1/tracks/small/board?format=csv"


def get_csv_rows(client: Client, address: str) -> list[dict[str, str]]:
    response = client.get(address)
    assert response["Content-Type"] == "text/csv; charset=utf-8"
    return list(csv.DictReader(io.StringIO(response.content.decode())))


def test_board_csv_has_multipliers_and_scores(client: Client) -> None:
    _, entries = boards.create_board()
    run = Run.objects.filter(entry=entries["Better"]).earliest("pk")
    Score.objects.create(run=run, name="blimp/acc", value=0.5, stderr=0.1)
    rows = {row["id"]: row for row in get_csv_rows(client, BOARD)}
    first = rows[str(run.pk)]
    assert (first["title"], first["estimate.rank"], first["estimate.runs"]) == ("Better", "1", "3")
    assert float(first["estimate.low"]) < float(first["estimate.cm"]) < float(first["estimate.high"])
    assert (first["scores.blimp/acc.value"], first["scores.blimp/acc.stderr"]) == ("0.5", "0.1")
    assert {row["title"] for row in rows.values()} == {"main, 3 March", "Better", "Level", "Worse"}


def test_csv_links_to_the_next_page(client: Client) -> None:
    boards.create_board()
    address, rows = "/api/v1/runs?track=small&limit=4&format=csv", []
    while address:
        rows += get_csv_rows(client, address)
        link = client.get(address).headers.get("Link", "")
        address = link.removeprefix("<http://127.0.0.1:8000").partition(">")[0]
    assert len({row["id"] for row in rows}) == len(rows) == Run.objects.count()


@pytest.mark.parametrize("title", ['=HYPERLINK("http://x")', "+1", "-2", "@cmd", "\tx"])
def test_csv_escapes_spreadsheet_formulas(title: str) -> None:
    rows = [{"title": title, "value": -1.5, "labels": [title, "gpu"], "of": {"parts": [{"a": 1}]}, "none": None}]
    assert list(csv.reader(io.StringIO(write_csv(rows)))) == [
        ["title", "value", "labels", "of.parts", "none"],
        [f"'{title}", "-1.5", f"'{title} gpu", '{"a": 1}', ""],
    ]
