"""Tables of pages as CSV and JSON, at the page's own URL."""

from __future__ import annotations

import csv
import io
import json
from typing import Any

import pytest
from django.test import Client
from pytest_django import DjangoAssertNumQueries

from leaderboard.models import Entry, Run, Score
from leaderboard.views.formats import Table, write_csv, write_json
from scheduler import rate_limits
from tests.support import boards

pytestmark = pytest.mark.django_db


def get_csv_rows(client: Client, address: str) -> list[dict[str, str]]:
    response = client.get(address)
    assert response["Content-Type"] == "text/csv; charset=utf-8"
    return list(csv.DictReader(io.StringIO(response.content.decode())))


def test_board_csv_has_multipliers_and_scores(client: Client) -> None:
    _, entries = boards.create_board()
    better = Run.objects.filter(entry=entries["Better"])
    for run, value in zip(better, (0.5, 0.6, 0.7), strict=True):
        Score.objects.create(run=run, name="blimp/acc", value=value, stderr=0.1)
    table = get_csv_rows(client, "/tracks/small/?format=csv")
    first = table[0]
    assert (first["title"], first["rank"], first["runs"]) == ("Better", "1", "3")
    assert float(first["multiplier_low"]) < float(first["multiplier"]) < float(first["multiplier_high"])
    assert float(first["blimp/acc"]) == pytest.approx(0.6)
    assert {row["title"] for row in table} == {"main, 3 March", "Better", "Level", "Worse"}
    assert [row["is_baseline"] for row in table].count("True") == 1


def test_board_json_has_rows_of_csv_with_types(client: Client) -> None:
    boards.create_board()
    table = client.get("/?format=json").json()
    assert table["table"] == "board-small-flops"
    assert isinstance(table["rows"][0]["multiplier"], float)
    assert len(table["rows"]) == len(get_csv_rows(client, "/?format=csv"))


def test_run_tables_have_scores_as_columns(client: Client) -> None:
    _, entries = boards.create_board()
    first, *_ = Run.objects.filter(entry=entries["Better"]).order_by("pk")
    Score.objects.create(run=first, name="blimp/acc", value=0.5, stderr=0.1)
    entry_rows = get_csv_rows(client, f"/entries/{entries['Better'].pk}/?format=csv")
    assert [row["blimp/acc"] for row in entry_rows] == ["0.5", "", ""]
    assert get_csv_rows(client, f"/runs/{first.pk}/?format=csv") == [
        {"run": str(first.pk), "name": "blimp/acc", "value": "0.5", "stderr": "0.1", "count": ""}
    ]
    other_run = Run.objects.filter(entry=entries["Worse"]).first()
    assert other_run
    compared_rows = get_csv_rows(client, f"/compare/?runs={other_run.pk},{first.pk},{first.pk},x,99999999&format=csv")
    assert [row["id"] for row in compared_rows] == [str(other_run.pk), str(first.pk)]


@pytest.mark.parametrize("address", ["/queue/?format=csv", "/nodes/?format=csv", "/?format=csv"])
def test_csv_of_empty_site_is_empty(client: Client, address: str) -> None:
    assert client.get(address).content == b"\n" or client.get(address).content == b""


def test_unknown_format_returns_the_page(client: Client) -> None:
    boards.create_board()
    assert client.get("/?format=exe")["Content-Type"].startswith("text/html")


def test_table_of_missing_row_is_404(client: Client) -> None:
    for address in ("/runs/9999/?format=csv", "/entries/9999/?format=json", "/tracks/none/?format=csv"):
        assert client.get(address).status_code == 404, address


def test_board_csv_is_304_until_a_change(client: Client) -> None:
    boards.create_board()
    first = client.get("/?format=csv")
    assert client.get("/?format=csv", headers={"If-None-Match": first["ETag"]}).status_code == 304
    Entry.objects.filter(title="Better").update(title="Best")
    Run.objects.filter(entry__title="Best").update(revision=77)
    assert client.get("/?format=csv", headers={"If-None-Match": first["ETag"]}).status_code == 200


@pytest.mark.parametrize("title", ['=HYPERLINK("http://x")', "+1", "-2", "@cmd", "\tx"])
def test_csv_escapes_spreadsheet_formulas(title: str) -> None:
    table = Table("t", [{"title": title, "value": -1.5, "labels": [title, "gpu"]}])
    assert list(csv.reader(io.StringIO(write_csv(table))))[1] == [f"'{title}", "-1.5", f"'{title} gpu"]
    assert json.loads(write_json(table))["rows"][0]["title"] == title


@pytest.mark.usefixtures("rate_limit_clock")
def test_table_requests_are_rate_limited(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(rate_limits.PER_MINUTE, "read", 1)
    assert [client.get("/queue/?format=csv").status_code for _ in range(2)] == [200, 429]


def test_board_csv_takes_few_queries(client: Client, django_assert_max_num_queries: Any) -> None:
    boards.create_board()
    limit: DjangoAssertNumQueries = django_assert_max_num_queries
    with limit(5):  # the track, two for its standings, their rows, the scores
        client.get("/tracks/small/?format=csv")


def test_compare_csv_with_invalid_run_id_skips_it(client: Client) -> None:
    run = Run.objects.filter(entry=boards.create_board()[1]["Better"]).earliest("pk")
    table = get_csv_rows(client, f"/compare/?format=csv&runs={'9' * 30},²,{run.pk}")
    assert [row["id"] for row in table] == [str(run.pk)]
