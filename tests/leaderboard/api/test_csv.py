"""Answers of the API as CSV: `?format=csv`."""

from __future__ import annotations

import csv
import io
from typing import Any

import pytest
from django.test import Client
from pytest_django import DjangoAssertNumQueries

from leaderboard.api.table import write_csv
from leaderboard.models import Run, Score
from scheduler import rate_limits
from tests.support import boards, scene

pytestmark = pytest.mark.django_db
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


def test_csv_has_a_row_for_each_item_of_the_json(client: Client) -> None:
    _, entries = boards.create_board()
    runs = f"/api/v1/runs?entry={entries['Better'].pk}"
    items = client.get(runs).json()["items"]
    assert [row["id"] for row in get_csv_rows(client, f"{runs}&format=csv")] == [str(item["id"]) for item in items]
    assert len(items) == 3


def test_csv_links_to_the_next_page(client: Client) -> None:
    boards.create_board()
    address, rows = "/api/v1/runs?track=small&limit=4&format=csv", []
    while address:
        rows += get_csv_rows(client, address)
        link = client.get(address).headers.get("Link", "")
        address = link.removeprefix("<http://127.0.0.1:8000").partition(">")[0]
    assert len({row["id"] for row in rows}) == len(rows) == Run.objects.count()


def test_runs_csv_of_ids_lists_these_runs(client: Client) -> None:
    numbers = sorted(Run.objects.filter(entry=boards.create_board()[1]["Better"]).values_list("pk", flat=True))[:2]
    rows = get_csv_rows(client, f"/api/v1/runs?ids={numbers[0]},{numbers[1]},99999999&format=csv")
    assert sorted(int(row["id"]) for row in rows) == numbers
    assert client.get(f"/api/v1/runs?ids={numbers[0]},x&format=csv").status_code == 422


def test_queue_csv_names_the_list_of_each_row(client: Client) -> None:
    night = scene.create_night_board()
    rows = get_csv_rows(client, "/api/v1/queue?format=csv")
    assert {row["list"] for row in rows} == {"live", "waiting"}
    assert str(night["train"].pk) in {row["id"] for row in rows if row["list"] == "live"}


@pytest.mark.parametrize("address", ["queue", "nodes", "runs"])
def test_csv_of_empty_site_is_empty(client: Client, address: str) -> None:
    assert client.get(f"/api/v1/{address}?format=csv").content == b"\n"


def test_csv_of_missing_run_is_404_with_a_message(client: Client) -> None:
    response = client.get("/api/v1/runs/9999/scores?format=csv")
    assert (response.status_code, response.json()) == (404, {"detail": "Not found."})


def test_board_csv_is_304_until_a_change(client: Client) -> None:
    boards.create_board()
    first = client.get(BOARD)
    assert client.get(BOARD, headers={"If-None-Match": first["ETag"]}).status_code == 304
    Run.objects.filter(entry__title="Better").update(revision=77)
    assert client.get(BOARD, headers={"If-None-Match": first["ETag"]}).status_code == 200


@pytest.mark.parametrize("title", ['=HYPERLINK("http://x")', "+1", "-2", "@cmd", "\tx"])
def test_csv_escapes_spreadsheet_formulas(title: str) -> None:
    rows = [{"title": title, "value": -1.5, "labels": [title, "gpu"], "of": {"parts": [{"a": 1}]}, "none": None}]
    assert list(csv.reader(io.StringIO(write_csv(rows)))) == [
        ["title", "value", "labels", "of.parts", "none"],
        [f"'{title}", "-1.5", f"'{title} gpu", '{"a": 1}', ""],
    ]


@pytest.mark.usefixtures("rate_limit_clock")
def test_csv_requests_are_rate_limited(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(rate_limits.PER_MINUTE, "read", 1)
    assert [client.get("/api/v1/queue?format=csv").status_code for _ in range(2)] == [200, 429]


def test_board_csv_takes_few_queries(client: Client, django_assert_max_num_queries: Any) -> None:
    boards.create_board()
    limit: DjangoAssertNumQueries = django_assert_max_num_queries
    with limit(6):  # the ETag, the track, two for its standings, the runs, the scores
        client.get(BOARD)
