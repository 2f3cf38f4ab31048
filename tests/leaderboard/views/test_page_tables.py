"""Every table as CSV and JSON, at the page's own address."""

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


def rows(client: Client, address: str) -> list[dict[str, str]]:
    answer = client.get(address)
    assert answer["Content-Type"] == "text/csv; charset=utf-8"
    return list(csv.DictReader(io.StringIO(answer.content.decode())))


def test_the_board_has_multipliers_and_scores_in_every_row(client: Client) -> None:
    _, entries = boards.board()
    better = Run.objects.filter(entry=entries["Better"])
    for run, value in zip(better, (0.5, 0.6, 0.7), strict=True):
        Score.objects.create(run=run, name="blimp/acc", value=value, stderr=0.1)
    found = rows(client, "/tracks/small/?format=csv")
    first = found[0]
    assert (first["title"], first["rank"], first["runs"]) == ("Better", "1", "3")
    assert float(first["multiplier_low"]) < float(first["multiplier"]) < float(first["multiplier_high"])
    assert float(first["blimp/acc"]) == pytest.approx(0.6)
    assert {row["title"] for row in found} == {"main, 3 March", "Better", "Level", "Worse"}
    assert [row["is_baseline"] for row in found].count("True") == 1


def test_json_holds_the_same_rows_with_their_types(client: Client) -> None:
    boards.board()
    found = client.get("/?format=json").json()
    assert found["table"] == "board-small-flops"
    assert isinstance(found["rows"][0]["multiplier"], float)
    assert len(found["rows"]) == len(rows(client, "/?format=csv"))


def test_runs_stand_beside_each_other_with_their_scores(client: Client) -> None:
    _, entries = boards.board()
    first, *_ = Run.objects.filter(entry=entries["Better"]).order_by("pk")
    Score.objects.create(run=first, name="blimp/acc", value=0.5, stderr=0.1)
    of_entry = rows(client, f"/entries/{entries['Better'].pk}/?format=csv")
    assert [row["blimp/acc"] for row in of_entry] == ["0.5", "", ""]
    assert rows(client, f"/runs/{first.pk}/?format=csv") == [
        {"run": str(first.pk), "name": "blimp/acc", "value": "0.5", "stderr": "0.1", "count": ""}
    ]
    other = Run.objects.filter(entry=entries["Worse"]).first()
    assert other
    compared = rows(client, f"/compare/?runs={other.pk},{first.pk},{first.pk},x,99999999&format=csv")
    assert [row["id"] for row in compared] == [str(other.pk), str(first.pk)]


@pytest.mark.parametrize("address", ["/queue/?format=csv", "/nodes/?format=csv", "/?format=csv"])
def test_an_empty_site_has_empty_tables(client: Client, address: str) -> None:
    assert client.get(address).content == b"\n" or client.get(address).content == b""


def test_an_unknown_form_is_the_page(client: Client) -> None:
    boards.board()
    assert client.get("/?format=exe")["Content-Type"].startswith("text/html")


def test_what_is_not_there_is_404_in_every_form(client: Client) -> None:
    for address in ("/runs/9999/?format=csv", "/entries/9999/?format=json", "/tracks/none/?format=csv"):
        assert client.get(address).status_code == 404, address


def test_a_table_is_304_until_something_changes(client: Client) -> None:
    boards.board()
    first = client.get("/?format=csv")
    assert client.get("/?format=csv", headers={"If-None-Match": first["ETag"]}).status_code == 304
    Entry.objects.filter(title="Better").update(title="Best")
    Run.objects.filter(entry__title="Best").update(revision=77)
    assert client.get("/?format=csv", headers={"If-None-Match": first["ETag"]}).status_code == 200


@pytest.mark.parametrize("title", ['=HYPERLINK("http://x")', "+1", "-2", "@cmd", "\tx"])
def test_a_spreadsheet_takes_no_title_for_a_formula(title: str) -> None:
    table = Table("t", [{"title": title, "value": -1.5}])
    assert list(csv.reader(io.StringIO(write_csv(table))))[1] == [f"'{title}", "-1.5"]
    assert json.loads(write_json(table))["rows"][0]["title"] == title


def test_whoever_asks_too_often_is_told_to_wait(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(rate_limits.PER_MINUTE, "read", 1)
    assert [client.get("/queue/?format=csv").status_code for _ in range(2)] == [200, 429]


def test_a_long_board_takes_as_few_queries(client: Client, django_assert_max_num_queries: Any) -> None:
    boards.board()
    limit: DjangoAssertNumQueries = django_assert_max_num_queries
    with limit(5):  # the track, two for its standings, their rows, the scores
        client.get("/tracks/small/?format=csv")


def test_compare_csv_with_impossible_run_id_leaves_it_out(client: Client) -> None:
    run = Run.objects.filter(entry=boards.board()[1]["Better"]).earliest("pk")
    found = rows(client, f"/compare/?format=csv&runs={'9' * 30},²,{run.pk}")
    assert [row["id"] for row in found] == [str(run.pk)]
